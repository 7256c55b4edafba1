"""The shell below a batch script's block: the same for all kinds but for how the ranks are started."""

PRELUDE = """
set -euo pipefail
[ -z "$VENV" ] || . "$VENV/bin/activate"
threads=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads MKL_NUM_THREADS=$threads NUMBA_NUM_THREADS=$threads
export PYTHONSAFEPATH=1 # a psgd.py or kernels.py in the working folder is not imported by mistake
export PYTHONUNBUFFERED=1

# Each node keeps what it compiled in a folder of its own. With exec, signals reach the rank itself.
rank='cache=${XDG_CACHE_HOME:-$HOME/.cache}/psgd/$(uname -n)
export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR-$cache/numba} CUPY_CACHE_DIR=${CUPY_CACHE_DIR-$cache/cupy}
exec "$@"'
"""

SRUN = """
# srun does not take --cpus-per-task from sbatch since Slurm 22.05. One rank that fails ends the job.
start=(srun --mpi="$MPI" --cpus-per-task="$threads" --cpu-bind=cores --kill-on-bad-exit=1)
"""

SRUN_GPUS = """
# srun does not take --cpus-per-task from sbatch since Slurm 22.05. One rank that fails ends the job. Each rank sees all
# GPUs of its node and takes the one of its place there: ranks with --gpus-per-task could not reach each other's.
start=(srun --mpi="$MPI" --cpus-per-task="$threads" --cpu-bind=cores --gpu-bind=none --kill-on-bad-exit=1)
"""

MPIRUN = """
# Unlike srun's step, the job continues when a node is lost (--no-kill), if the MPI can.
start=(mpirun -n "$SLURM_NTASKS")
"""

PATIENTLY = """
patiently() { # COMMAND: again and again while the controller is busy, for some two minutes
    local pause
    for pause in 1 2 4 8 15 15 15 15 15 15 15; do
        ! "$@" || return 0
        sleep "$pause"
    done
    "$@"
}
"""

NEW_STEP = """
# MPICH names shared memory by job and step. Steps are counted anew in each turn: this one gets a number of its own, or
# what a killed turn has left on a node would hang it.
for ((turn = 0; turn < ${SLURM_RESTART_COUNT:-0}; turn++)); do
    patiently srun --nodes=1 --ntasks=1 true || echo "srun did not start a step; the ranks are started all the same" >&2
done
"""

RUN = """
"${start[@]}" bash -c "$rank" rank "${RUN[@]}" psgd train "${OPTIONS[@]}" --log "psgd-$SLURM_JOB_ID.jsonl"
"""

RUN_TRIAL = """
read -ra trial <<<"${TRIALS[$SLURM_ARRAY_TASK_ID]}"
"${start[@]}" bash -c "$rank" rank "${RUN[@]}" psgd train "${OPTIONS[@]}" "${trial[@]}" \\
    --log "psgd-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID.jsonl"
"""

RUN_LONG = """
newest() { # the newest complete checkpoint, or nothing
    [ ! -d "$CHECKPOINTS" ] ||
        find "$CHECKPOINTS" -maxdepth 1 -name 'step-[0-9]*' ! -name 'step-*[!0-9]*' | sort -V | tail -n 1
}
before=$(newest)
resume=()
[ -z "$before" ] || resume=(--resume)
log=psgd-$SLURM_JOB_ID.jsonl
logged() { # bytes in the log
    stat -c %s "$log" 2>/dev/null || echo 0
}

ranks= warned=
trap 'warned=yes; interrupted=1; [ -z "$ranks" ] || kill -USR2 "$ranks" || true' USR2
run() { # starts the ranks, and waits for them; the exit code is in `code`
    "${start[@]}" bash -c "$rank" rank "${RUN[@]}" psgd train "${OPTIONS[@]}" --log "$log" \\
        --checkpoint-dir "$CHECKPOINTS" --save-signal USR2 "${resume[@]}" &
    ranks=$!
    interrupted=1
    while [ "$interrupted" = 1 ]; do # a signal ends the wait, not the ranks
        interrupted=0 code=0
        wait "$ranks" || code=$?
    done
    ranks=
}
had=$(logged)
for pause in 5 15 30 0; do
    run
    # A launcher that gets no step from a busy controller ends with 1 too, before any rank has written to the log.
    [ "$code" = 1 ] && [ "$(logged)" = "$had" ] && [ "$pause" != 0 ] && [ -z "$warned" ] || break
    echo "the ranks did not start; next attempt in $pause s" >&2
    sleep "$pause"
    [ -z "$warned" ] || break # the time is over
done

again() {
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "$MAX_RESTARTS" ]; then
        echo "requeued $MAX_RESTARTS times already: not again" >&2
        exit 1
    fi
    echo "requeued, to resume after ${1:-the start}" # first: scontrol ends this script
    if ! patiently scontrol requeue "$SLURM_JOB_ID"; then
        echo "not requeued, as scontrol failed; by hand: scontrol requeue $SLURM_JOB_ID" >&2
        exit 1
    fi
}
# 85: saved and stopped, with steps left. Of ranks that end a moment later than the first srun makes another code.
if [ "$code" = 85 ] || { [ "$code" != 0 ] && [ -n "$warned" ]; }; then
    if [ "$(newest)" = "$before" ]; then
        echo "came no further than ${before:-the start}: not requeued" >&2
        exit 1
    fi
    again "$(newest)"
elif [ "$code" != 0 ]; then # a preempted job that ends by itself would not be requeued by Slurm
    case $(patiently scontrol show job --oneliner "$SLURM_JOB_ID") in
    *JobState=RUNNING*PreemptTime=[0-9]*) again "$(newest)" ;;
    esac
fi
exit "$code"
"""
