# An image for anchor and members of a run on Kubernetes (docs/how-to/kubernetes.md): docker build -t chicle .
# It has the CPU build of torch; for GPUs give --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126.
FROM python:3.11-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/chicle
ENV PATH=/opt/chicle/bin:$PATH
WORKDIR /src
# torch first, so that a change of Chicle does not load it again.
COPY constraints.txt .
RUN grep -E "^torch==" constraints.txt > torch.txt && pip install --index-url "$TORCH_INDEX" -r torch.txt
COPY pyproject.toml README.md LICENSE ./
COPY chicle_elastic chicle_elastic
COPY estimators estimators
COPY torchx_components torchx_components
RUN pip install -c constraints.txt ".[cluster,cnn,tensorboard,parquet,url]"
# s3:// needs s3fs (gs:// gcsfs, abfs:// adlfs), which wants an fsspec of its own version.
RUN pip install s3fs

FROM python:3.11-slim-bookworm
COPY --from=build /opt/chicle /opt/chicle
# Members run as this user (kubernetes_manifest.USER); compiled kernels go to its cache folder.
RUN useradd --uid 10001 --create-home chicle
USER 10001
ENV PATH=/opt/chicle/bin:$PATH PYTHONUNBUFFERED=1 CHICLE_CACHE_DIR=/home/chicle/.cache/chicle
# Compile the kernels of the linear models and of the default network once, and look whether all that a node needs is
# there.
RUN python -c "from sklearn.datasets import load_breast_cancer as load; from estimators import *; \
    [kind.fit(*load(return_X_y=True)) for kind in (ChicleSVM(), ChicleCNNClassifier(max_epochs=1))]" && chicle doctor
