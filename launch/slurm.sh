#!/usr/bin/env bash
# One run on several GPU nodes under SLURM, queued again when it is interrupted:
#
#   sbatch --nodes=4 launch/slurm.sh train --config=t5:xl,sde --workdir=/shared/runs/t5-xl
#
# What follows the file's name is what `endx` takes. Options of sbatch, given before it, go over those below. The workdir
# has to be a folder that all nodes see. docs/pods.md has the rest.
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
# Two to three minutes before the time is up every process is told to stop, and saves.
#SBATCH --signal=TERM@120
set -euo pipefail

restarts=${ENDX_RESTARTS:-100} # how often one job may be queued again
patience=${ENDX_PATIENCE:-900} # seconds that the other processes have to end, once one has
# Restarted: 75, by which endx says that the same command resumes, and processes ended by a signal (aborted, bus error,
# killed, segmentation fault, terminated); JAX aborts a process (134) that has lost another one. A user error is 2 and a
# bug 1: not restarted.
export AGAIN="75 134 135 137 139 143"

if (($# == 0)); then
  echo "launch/slurm.sh: no verb; give what endx takes, such as: sbatch launch/slurm.sh train --config=t5:xl,sde" >&2
  exit 2
fi

# What every process does. srun returns the highest status of all, so a user error (2) becomes 255: else the 134 of the
# processes that JAX aborts after it would hide it. SLURM signals endx itself; here the signal must only not end the wait.
process() {
  local status=0
  trap : TERM
  endx "$@" &
  until wait $!; do
    status=$?
    kill -0 $! 2>/dev/null || break
  done
  if ((status != 0)) && [[ " $AGAIN " != *" $status "* ]]; then
    echo "launch/slurm.sh: process $SLURM_PROCID on $(hostname) ended with status $status, which another try won't mend"
    status=255
  fi
  exit "$status"
}

tried=${SLURM_RESTART_COUNT:-0}
echo "launch/slurm.sh: start $((tried + 1)) of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST: endx $*"
# A process that ends does not take the others with it (--kill-on-bad-exit): one that was told to stop may be done with
# its part while another still writes. All CPUs of a node are for its one process (--cpu-bind).
status=0
srun --kill-on-bad-exit=0 --wait="$patience" --cpu-bind=none --label \
  bash -c "$(declare -f process); process \"\$@\"" endx "$@" || status=$?

if [[ " $AGAIN " != *" $status "* ]]; then
  echo "launch/slurm.sh: ended with status $status"
  exit "$status"
fi
if ((tried >= restarts)); then
  echo "launch/slurm.sh: status $status, and $restarts restarts were used; ENDX_RESTARTS allows more"
  exit "$status"
fi
echo "launch/slurm.sh: status $status; the job is queued again (restart $((tried + 1)) of $restarts)"
scontrol requeue "$SLURM_JOB_ID"
