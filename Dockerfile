# The relay's image; docs/deployment.md says how to run it.
#
#   docker build -t relay .                            for sinks without an extra, such as http
#   docker build --build-arg EXTRAS=all -t relay .     for every type of sink
#
# REVISION, CREATED and SOURCE name its origin, in its labels and in relay_build_info.

# The digest is the index's, so it covers every platform, and the tag cannot move.
ARG BASE=python:3.13.16-slim-trixie
ARG BASE_DIGEST=sha256:bf44cdfcb76cd3b41e879bc058fc37ec5872002ccfde7fcb765e218cde0cd79c
ARG PYTHON=${BASE}@${BASE_DIGEST}

FROM ${PYTHON} AS build

# At run time nothing can be written, so modules not compiled here would be compiled at every start;
# unchecked, because no source changes any more, and copying may change its time. What a package is
# built with is locked as well, and comes by the constraints.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYC_INVALIDATION_MODE=UNCHECKED_HASH \
    UV_NO_CACHE=1 \
    UV_BUILD_CONSTRAINT=/build/deploy/requirements-build.txt
WORKDIR /build

# The build tools are locked like the rest, and stay in this stage; so does uv, which installs into
# the relay's own environment from outside.
COPY deploy/requirements-uv.txt deploy/requirements-build.txt deploy/
RUN python3 -m venv tools \
 && tools/bin/pip install --require-hashes --only-binary :all: \
        --requirement deploy/requirements-uv.txt \
 && tools/bin/uv pip install --python tools --require-hashes --only-binary :all: \
        --requirements deploy/requirements-build.txt

# Both locks hold the newer SQLite of the extra `sqlite`: the base's own (3.46.1) has the fault that
# can lose pages (reset of the write-ahead log, mended in 3.51.3). It is there for x86_64 alone.
# All comes as wheels, so that no compiler has to be here, but for nkeys, which is Python alone and
# is published as source only.
ARG EXTRAS=""
COPY deploy/requirements-sqlite.txt deploy/requirements-extras.txt deploy/
RUN if [ "$(uname -m)" != x86_64 ]; then \
        echo "a recent SQLite is only there for x86_64: build with --platform linux/amd64" >&2; \
        exit 1; \
    fi \
 && case "$EXTRAS" in \
        "")  lock=deploy/requirements-sqlite.txt ;; \
        all) lock=deploy/requirements-extras.txt ;; \
        *)   echo "EXTRAS is \"all\" or left out, not \"$EXTRAS\"" >&2; exit 1 ;; \
    esac \
 && python3 -m venv --without-pip /opt/relay \
 && tools/bin/uv pip install --python /opt/relay --compile-bytecode --require-hashes \
        --only-binary :all: --no-binary nkeys --requirements "$lock"

COPY pyproject.toml README.md LICENSE ./
COPY relay relay
# uv leaves a lock that everybody may write to.
# The list names what is installed, with versions and licences; the base's packages are Debian's. To
# check it against the schema takes ten times as long as to write it.
RUN tools/bin/uv pip install --python /opt/relay --no-deps --compile-bytecode . \
 && rm /opt/relay/.lock \
 && tools/bin/cyclonedx-py environment /opt/relay/bin/python3 --output-reproducible --no-validate \
        --output-file sbom.cdx.json


FROM ${PYTHON}

# The base comes without the standard library's bytecode.
# The numbers are fixed, because secrets and volumes are given to them from outside.
RUN python3 -m compileall -q --invalidation-mode unchecked-hash -x '/(site|dist)-packages/' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && groupadd --gid 10001 relay \
 && useradd --uid 10001 --gid relay --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin relay \
 && install --directory --mode 0755 /etc/relay \
 && install --directory --mode 0700 --owner relay --group relay /var/lib/relay

COPY --from=build /opt/relay /opt/relay
COPY --from=build /build/sbom.cdx.json /usr/share/doc/relay/
COPY config.example.toml /usr/share/doc/relay/

ENV PATH=/opt/relay/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    RELAY_CONFIG=/etc/relay/config.toml

# By its number, so that Kubernetes can see that it is not root.
USER 10001:10001
# Where a relative path in a config leads: the one place that can be written to.
WORKDIR /var/lib/relay

# The image has to understand every key of the example, and must not bring the SQLite with the fault.
# The values are made up, and in no layer.
RUN RELAY_SECRET=smoke-0123456789abcdef RELAY_ADMIN_TOKEN=smoke-fedcba9876543210 \
    SLACK_URL=https://slack.invalid/services/T/B/x CRM_URL=https://crm.invalid/hook \
    CRM_AUTH=smoke CRM_SIGNING=whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3BxcnN0dXY= \
    relay check-config --config /usr/share/doc/relay/config.example.toml \
 && python3 -c 'from relay.store.sqlite import driver; assert not driver.has_wal_reset_fault(), driver.VERSION'

VOLUME /var/lib/relay
# Public, behind a proxy; metrics, health and the admin API, for the inside only.
EXPOSE 8080 9464

# Whether the process answers, without a token; whether the relay takes events is for /readyz, and
# whether all is well for `relay status`, which no probe may depend on. Nor on the config, which may
# be broken on disk while the relay goes on: with another port in admin_listen, give the container a
# health check of its own.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["relay", "probe", "--url", "http://127.0.0.1:9464"]

# PID 1 is the relay itself, which drains on SIGTERM and reads its config again on SIGHUP.
STOPSIGNAL SIGTERM
ENTRYPOINT ["relay"]
CMD ["serve"]

ARG VERSION=0.3.0
ARG REVISION=""
ARG CREATED=""
ARG SOURCE=""
ARG BASE
ARG BASE_DIGEST
ENV RELAY_REVISION=$REVISION
LABEL org.opencontainers.image.title="relay" \
      org.opencontainers.image.description="A receiver and relay for the video service's webhooks that loses nothing it has acknowledged" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.base.name="docker.io/library/$BASE" \
      org.opencontainers.image.base.digest="$BASE_DIGEST"
