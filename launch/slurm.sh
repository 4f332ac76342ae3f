#!/usr/bin/env bash
# Runs endx on several GPU nodes under SLURM, and requeues the job if it is interrupted:
#
#   sbatch --nodes=4 launch/slurm.sh train --config=t5:xl,sde --workdir=/shared/runs/t5-xl
#
# Arguments after the file's name are passed to `endx`. Options of sbatch before it override those below. The workdir must
# be on a file system that all nodes share. See docs/pods.md.
#
#SBATCH --job-name=endx
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
# SIGTERM two to three minutes before the time limit, so that every process saves and stops.
#SBATCH --signal=TERM@120
set -euo pipefail

restarts=${ENDX_RESTARTS:-100} # maximum number of requeues of a job
patience=${ENDX_PATIENCE:-900} # seconds for the other processes to end after the first one
# Statuses after which the job is requeued: 75 (the same command resumes), and signals (aborted, bus error, killed,
# segmentation fault, terminated), as JAX aborts a process (134) whose peer died. User errors (2) and bugs (1) are not
# retried.
export AGAIN="75 134 135 137 139 143"

if (($# == 0)); then
  echo "launch/slurm.sh: no verb; give the arguments of endx, such as: sbatch launch/slurm.sh train --config=t5:xl,sde" >&2
  exit 2
fi

# Runs in every process. srun returns the highest status of all processes, so a user error (2) becomes 255: otherwise the
# 134 of the processes that JAX aborts after it would hide it. SLURM signals endx directly; the trap only keeps the signal
# from ending the wait.
process() {
  local status=0
  trap : TERM
  endx "$@" &
  until wait $!; do
    status=$?
    kill -0 $! 2>/dev/null || break
    status=0
  done
  if ((status != 0)) && [[ " $AGAIN " != *" $status "* ]]; then
    echo "launch/slurm.sh: process $SLURM_PROCID on $(hostname) ended with status $status and is not retried"
    status=255
  fi
  exit "$status"
}

tried=${SLURM_RESTART_COUNT:-0}
echo "launch/slurm.sh: start $((tried + 1)) of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST: endx $*"
# A process that ends does not stop the others (--kill-on-bad-exit=0), which may still be writing a checkpoint. Each
# node's one process uses all of its CPUs (--cpu-bind=none).
status=0
srun --kill-on-bad-exit=0 --wait="$patience" --cpu-bind=none --label \
  bash -c "$(declare -f process); process \"\$@\"" endx "$@" || status=$?

if [[ " $AGAIN " != *" $status "* ]]; then
  echo "launch/slurm.sh: ended with status $status"
  exit "$status"
fi
if ((tried >= restarts)); then
  echo "launch/slurm.sh: status $status after $restarts restarts; set ENDX_RESTARTS to allow more"
  exit "$status"
fi
echo "launch/slurm.sh: status $status; the job is requeued (restart $((tried + 1)) of $restarts)"
scontrol requeue "$SLURM_JOB_ID"
