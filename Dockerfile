# A CPU image for the README's first commands:
#
#     docker build -t fssl-bench .
#     docker run --rm -it fssl-bench                       # make bench-table1 TABLES=1
#     docker run --rm -it fssl-bench make test
#
# For GPUs, omit the first pip line: PyPI's Linux wheels of PyTorch include CUDA.
FROM python:3.12-slim

RUN apt-get update && apt-get install --no-install-recommends --yes git make && rm -rf /var/lib/apt/lists/*
WORKDIR /fssl-bench

# Take both from one index: a torchvision built for another torch fails to import.
COPY constraints.txt ./
RUN python -m venv .venv \
    && .venv/bin/pip install --no-cache-dir -c constraints.txt torch torchvision \
       --index-url https://download.pytorch.org/whl/cpu

COPY . .
RUN make install
CMD ["make", "bench-table1", "TABLES=1"]
