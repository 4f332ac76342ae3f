#!/usr/bin/env bash
# Runs endx on a slice of Cloud TPU VMs. The first argument is the action:
#
#   create           request the slice as a queued resource, and wait until it is active
#   setup            install this checkout on all workers, and mount NFS as /runs if it is set
#   run VERB ...     start `endx VERB ...` on all workers, and return
#   logs [WORKER]    follow the log of a worker (default: worker 0, which reports results)
#   status           print the state of each worker
#   stop             make all workers save and stop; `run` resumes
#   delete           delete the slice; until then it is billed
#   keep VERB ...    all of the above: request a preempted slice again, and delete it when the run has ended
#
# Environment variables describe the slice:
#
#   export ZONE=us-east5-b ACCELERATOR_TYPE=v6e-16 SPOT=1
#   launch/tpu/vm.sh keep train --config=t5:xl,sde --workdir=gs://BUCKET/runs/t5-xl
#
# Optional: TPU_NAME (default: endx), RUNTIME_VERSION (default: by type), PROJECT (default: gcloud's), SPOT (empty: not
# preemptible), SERVICE_ACCOUNT (default: the project's), which must have access to the bucket, NFS (HOST:/SHARE, for
# workdirs in /runs instead of a bucket), and ENDX_RESTARTS, the number of times that `keep` requests the slice again
# (default: 100). See docs/pods.md.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
name=${TPU_NAME:-endx}
pause=${ENDX_PAUSE:-60} # seconds between checks

say() { echo "launch/tpu/vm.sh: $*" >&2; }

# Runs gcloud compute tpus SERVICE VERB ARGUMENT... in the zone and project.
tpus() { gcloud compute tpus "$@" --zone="$ZONE" ${PROJECT:+--project="$PROJECT"}; }

on() { tpus tpu-vm ssh "$name" --quiet --worker="$1" --command="$2"; }

# Prints the runtime version for the chip: https://cloud.google.com/tpu/docs/runtimes
runtime_version() {
  case $ACCELERATOR_TYPE in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}

# Prints ACTIVE, WAITING_FOR_RESOURCES, ..., or nothing if there is no such request.
state() { tpus queued-resources describe "$name" --format='value(state.state)' 2>/dev/null || true; }

create() {
  if [[ -z $(state) ]]; then
    tpus queued-resources create "$name" --quiet --node-id="$name" --accelerator-type="$ACCELERATOR_TYPE" \
      --runtime-version="${RUNTIME_VERSION:-$(runtime_version)}" ${SPOT:+--spot} \
      ${SERVICE_ACCOUNT:+--service-account="$SERVICE_ACCOUNT"}
  fi
  local now before=
  while now=$(state) && [[ $now != ACTIVE ]]; do
    [[ $now == "$before" ]] || say "$name is ${now:-gone}"
    case $now in
      FAILED | SUSPENDING | SUSPENDED | DELETING) return 1 ;;
    esac
    before=$now
    sleep "$pause"
  done
}

setup() {
  local folder
  folder=$(mktemp -d)
  python3 -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$root"
  cp "$root/launch/tpu/endx.service" "$folder"
  on all 'rm -rf /tmp/endx && mkdir /tmp/endx'
  tpus tpu-vm scp "$folder"/* "$name:/tmp/endx/" --quiet --worker=all
  rm -r "$folder"
  if [[ -n ${NFS:-} ]]; then
    on all "set -e
      sudo apt-get -qq update && sudo apt-get -qq install --yes nfs-common >/dev/null
      grep -qs ' /runs ' /etc/fstab || echo '$NFS /runs nfs defaults,_netdev 0 0' | sudo tee -a /etc/fstab >/dev/null
      sudo mkdir -p /runs && sudo systemctl daemon-reload
      mountpoint -q /runs || sudo mount /runs"
  fi
  # The machines have Python 3.10, so uv installs another version.
  on all "set -e
    sudo mkdir -p /opt/endx
    sudo python3 -m pip install --quiet uv
    sudo UV_PYTHON_INSTALL_DIR=/opt/endx/python python3 -m uv venv --quiet --clear --python 3.12 /opt/endx/venv
    sudo python3 -m uv pip install --quiet --python /opt/endx/venv/bin/python \"\$(ls /tmp/endx/*.whl)[tpu,gcs]\"
    sudo install -m 644 /tmp/endx/endx.service /etc/systemd/system/ && sudo systemctl daemon-reload"
}

run() {
  local start
  start=$(mktemp)
  printf '#!/bin/bash\nexec /opt/endx/venv/bin/endx%s\n' "$(printf ' %q' "$@")" >"$start"
  tpus tpu-vm scp "$start" "$name:/tmp/endx-start" --quiet --worker=all
  rm "$start"
  on all 'sudo install -m 755 /tmp/endx-start /opt/endx/start &&
    { sudo systemctl reset-failed endx 2>/dev/null || true; } && sudo systemctl restart endx'
}

# Prints a line per worker: "endx-w-0 ActiveState=active ExecMainCode=1 ExecMainStatus=0 Result=success SubState=exited".
status() {
  # shellcheck disable=SC2016  # for the workers to expand
  on all 'echo "$(hostname)" $(systemctl show endx \
    --property=ActiveState,SubState,Result,ExecMainCode,ExecMainStatus | sort)'
}

# Waits until the run has ended on all workers (returns 0), has failed on one or was stopped (1), or has lost the slice
# (75). An unknown state is a lost slice only after ten checks. Status 75 of a service that systemd stopped is not a
# failure, as the machine may be about to be preempted.
watch_over() {
  local lines failed now unknown=0 idle=0
  while ((unknown < 10 && idle < 10)); do
    sleep "$pause"
    now=$(state)
    if [[ -z $now ]]; then
      unknown=$((unknown + 1))
      continue
    fi
    unknown=0
    [[ $now == ACTIVE ]] || return 75
    lines=$(status) || continue
    if failed=$(grep ' ActiveState=failed ' <<<"$lines" | grep --invert-match ' ExecMainStatus=75 Result=exit-code '); then
      say "not retried, or retried too often: ${failed%%$'\n'*}"
      on all 'sudo systemctl stop endx; sudo journalctl --unit=endx --lines=20 --output=cat' >&2 || true
      return 1
    fi
    if grep --quiet --extended-regexp ' SubState=(running|auto-restart|start|stop)' <<<"$lines"; then
      idle=0
    elif ! grep --quiet --invert-match ' ActiveState=active .* SubState=exited' <<<"$lines"; then
      return 0
    else
      idle=$((idle + 1))
    fi
  done
  ((idle)) || return 75
  say "$name was stopped"
  return 1
}

keep() {
  local status tried step restarts=${ENDX_RESTARTS:-100} self=$root/launch/tpu/vm.sh
  trap 'say "interrupted; $name continues and is billed until it is deleted"; exit 130' INT
  for ((tried = 1; ; tried++)); do
    status=0
    bash "$self" create || status=75
    for step in setup run; do
      # A step that fails on an active slice would fail on the next slice too.
      ((status)) || bash "$self" "$step" "$@" || { [[ $(state) == ACTIVE ]] && status=1 || status=75; }
    done
    ((status)) || watch_over || status=$?
    say "start $tried ended with status $status; deleting $name"
    tpus queued-resources delete "$name" --quiet --force
    if ((status != 75 || tried > restarts)); then
      return "$status"
    fi
  done
}

: "${ZONE:?is not set; set the zone, such as ZONE=us-east5-b}"
action=${1:-}
shift || true
case $action in
  create | keep)
    : "${ACCELERATOR_TYPE:?is not set; set the type, such as ACCELERATOR_TYPE=v6e-16}"
    ;;&
  run | keep)
    (($#)) || { say "$action: no verb; give the arguments of endx, such as: $action train --config=t5:xl,sde"; exit 2; }
    ;;&
  create | setup | run | status | keep) "$action" "$@" ;;
  logs) on "${1:-0}" 'sudo journalctl --unit=endx --follow --lines=200 --output=cat' ;;
  stop) on all 'sudo systemctl stop endx' ;;
  delete) tpus queued-resources delete "$name" --quiet --force ;;
  *)
    say "unknown action ${action:-(none)}; use create, setup, run, logs, status, stop, delete or keep"
    exit 2
    ;;
esac
