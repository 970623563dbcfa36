# The operator: `compactor operator`, and every other command of `compactor`. `make images` builds it (docs/images.md).
#
# Behind a proxy or a private mirror, configuration comes as secrets (apt.conf, apt.list, pip.conf, ca.crt): it is there
# while a step runs, and in no layer.
ARG BASE_IMAGE=debian:bookworm-slim

# --- what both images stand on: Python, an init, and the authorities that Debian trusts; the same lines in
# spark-images/Dockerfile, so the layer is shared
FROM ${BASE_IMAGE} AS base
RUN --mount=type=secret,id=apt.conf --mount=type=secret,id=apt.list --mount=type=secret,id=ca.crt,mode=0444 \
    if [ -f /run/secrets/apt.conf ]; then export APT_CONFIG=/run/secrets/apt.conf; fi; \
    apt-get -q update \
    && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install ca-certificates python3 tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/*.log /var/log/apt \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +

# --- build: nothing of this stage but /opt/venv is kept
FROM base AS build
RUN --mount=type=secret,id=apt.conf --mount=type=secret,id=apt.list --mount=type=secret,id=ca.crt,mode=0444 \
    if [ -f /run/secrets/apt.conf ]; then export APT_CONFIG=/run/secrets/apt.conf; fi; \
    apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install python3-venv
COPY requirements-build.txt requirements-operator.txt /src/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt --mount=type=cache,target=/root/.cache/pip \
    if [ -f /run/secrets/pip.conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip.conf; fi; \
    if [ -f /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    python3 -m venv /opt/build && python3 -m venv --without-pip /opt/venv \
    && /opt/build/bin/pip -q --disable-pip-version-check install --require-hashes -r /src/requirements-build.txt \
    && /opt/build/bin/pip -q --disable-pip-version-check --python /opt/venv/bin/python install --no-compile \
        --require-hashes --only-binary :all: --no-deps -r /src/requirements-operator.txt
COPY spark-images/trim.py /src/spark-images/
RUN python3 /src/spark-images/trim.py packages /opt/venv
COPY pyproject.toml README.md LICENSE NOTICE /src/
COPY operator /src/operator
RUN /opt/build/bin/pip -q --disable-pip-version-check wheel --no-deps --no-build-isolation -w /tmp /src \
    && /opt/build/bin/pip -q --disable-pip-version-check --python /opt/venv/bin/python install --no-compile --no-deps \
        --no-index --prefix /opt/compaction /tmp/*.whl \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/compaction/lib

# --- the image
FROM base
RUN echo 'compaction:x:65532:65532:operator:/tmp:/usr/sbin/nologin' >>/etc/passwd \
    && echo 'compaction:x:65532:' >>/etc/group
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/compaction /opt/compaction
# HOME is where a read-only root is writable (an emptyDir); compiled Python is in the image, so nothing else is written.
ENV PATH=/opt/compaction/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "compactor"]
CMD ["--help"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="compaction-operator" \
      org.opencontainers.image.description="Keeps storage compacted: plans, leases, fencing tokens, cleanup" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
