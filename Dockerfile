# One image for the command, a scheduler of Dask and its workers, with the pinned packages that development and CI use.
#   docker build -t gradleak .
#   docker run --rm --shm-size 4g -v "$PWD/audits:/audits" gradleak gradleak audit plan.toml --out run
FROM python:3.11-slim

WORKDIR /opt/gradleak
COPY requirements.txt requirements-distributed.txt ./
# With the same versions everywhere, so that no worker is refused and no number depends on the machine's packages.
RUN pip install --no-cache-dir -r requirements.txt -r requirements-distributed.txt
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY examples ./examples
RUN pip install --no-cache-dir --no-deps .

# Records hold no private data, but pictures, updates and keys beside them do: nobody's but this user's.
RUN useradd --create-home --uid 10001 auditor && mkdir /audits && chown auditor /audits
USER auditor
WORKDIR /audits
CMD ["gradleak", "--help"]
