"""What our processes say and leave behind: ids, kinds and places, never content. Knows no other part."""
