# scoremode on a machine with NVIDIA GPUs (driver 580 or newer, nvidia-container-toolkit):
#
#   docker build -t scoremode .
#   docker run --rm --gpus all --ipc=host -v "$PWD:/work" -v "$HOME/.cache/huggingface:/cache" \
#     --user "$(id -u):$(id -g)" scoremode ppl MODEL
#
# It is linted (`make lint-release`), but its authors have built and run no image of it: they have no Docker
# engine. Where it is wrong, an issue with what Docker prints is welcome.
FROM python:3.12-slim-bookworm AS build
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim-bookworm
# Triton compiles a small module at its first kernel. The image's Python is not Debian's, and brings its headers.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/
# torch's wheel and those that it asks for hold all of CUDA but the driver.
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt torch
COPY --from=build /wheels /wheels
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt /wheels/*.whl vl-convert-python \
 && rm -r /wheels /tmp/constraints.txt \
 && useradd --create-home --uid 1000 scoremode \
 && mkdir /work /cache /tmp/home \
 && chown scoremode /work /cache \
 && chmod 1777 /cache /tmp/home
# A user of any number (--user) may write these.
ENV HF_HOME=/cache \
    HOME=/tmp/home \
    TRITON_CACHE_DIR=/tmp/home/triton \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /work
ENTRYPOINT ["scoremode"]
CMD ["--help"]
