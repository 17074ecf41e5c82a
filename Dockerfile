# the worker's image, which has the command for everything else as well
FROM python:3.11-slim
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY sparkle sparkle
# as in the Makefile: where the pins cannot be had together, the newest versions within the bounds do
RUN pip install --no-cache-dir -c constraints.txt '.[worker,gateway,nkeys,encryption]' \
    || pip install --no-cache-dir '.[worker,gateway,nkeys,encryption]'
RUN useradd --system sparkle
USER sparkle
ENTRYPOINT ["sparkle"]
