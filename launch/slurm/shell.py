"""The shell code of a batch script, below the block to edit: all kinds share it, except for how the ranks start."""

PRELUDE = """
set -euo pipefail
[ -z "$VENV" ] || . "$VENV/bin/activate"
threads=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads MKL_NUM_THREADS=$threads NUMBA_NUM_THREADS=$threads
export PYTHONSAFEPATH=1 # a psgd.py or kernels.py in the working folder is not imported by mistake
export PYTHONUNBUFFERED=1

# Each node caches compiled code in a folder of its own. With exec, signals reach the rank itself.
rank='cache=${XDG_CACHE_HOME:-$HOME/.cache}/psgd/$(uname -n)
export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR-$cache/numba} CUPY_CACHE_DIR=${CUPY_CACHE_DIR-$cache/cupy}
exec "$@"'
"""

SRUN = """
# Since Slurm 22.05, srun does not inherit --cpus-per-task from sbatch. If one rank fails, the job ends.
start=(srun --mpi="$MPI" --cpus-per-task="$threads" --cpu-bind=cores --kill-on-bad-exit=1)
"""

SRUN_GPUS = """
# Since Slurm 22.05, srun does not inherit --cpus-per-task from sbatch. If one rank fails, the job ends. Each rank sees
# all GPUs of its node and uses the one of its local rank: with --gpus-per-task, ranks could not access other GPUs.
start=(srun --mpi="$MPI" --cpus-per-task="$threads" --cpu-bind=cores --gpu-bind=none --kill-on-bad-exit=1)
"""

MPIRUN = """
# With --no-kill, Slurm keeps the allocation when a node is lost; most MPIs' mpirun then ends the ranks.
start=(mpirun -n "$SLURM_NTASKS")
"""

MPIRUN_ULFM = """
# The run goes on when ranks die. A lost node is another matter: Slurm keeps the allocation (--no-kill), but mpirun ends
# the ranks.
start=(mpirun -n "$SLURM_NTASKS" --with-ft ulfm)
"""

PATIENTLY = """
patiently() { # COMMAND: repeats it while the controller is busy, for about two minutes
    local pause
    for pause in 1 2 4 8 15 15 15 15 15 15 15; do
        ! "$@" || return 0
        sleep "$pause"
    done
    "$@"
}
"""

NEW_STEP = """
# MPICH names shared memory after the job and the step, and step numbers start again after a requeue. A new number keeps
# this run from hanging on what a killed run left on a node.
for ((run = 0; run < ${SLURM_RESTART_COUNT:-0}; run++)); do
    patiently srun --nodes=1 --ntasks=1 true || echo "srun did not start a step; starting the ranks anyway" >&2
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
run() { # starts the ranks and waits for them; sets `code` to the exit code
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
    # A launcher that gets no step from a busy controller also exits with 1, and Open MPI's mpirun with 250 where it
    # cannot start its daemons, before any rank has written to the log.
    [ "$code" = 1 ] || [ "$code" = 250 ] || break
    [ "$(logged)" = "$had" ] && [ "$pause" != 0 ] && [ -z "$warned" ] || break
    echo "the ranks did not start; trying again in $pause s" >&2
    sleep "$pause"
    [ -z "$warned" ] || break # too late to start
done
"""

DONE_LONG = """
# mpirun returns 0 also where it has lost a node. A run that is done has said so in its log, with no steps left.
from=$had
[ -n "$before" ] || from=0 # a run from the start begins its log anew
if [ "$code" = 0 ] && ! tail -c "+$((from + 1))" "$log" | grep '^{"event": "end".*"requeue": false' >/dev/null; then
    echo "the ranks have ended, but the run is not done" >&2
    code=1
fi
"""

END_LONG = """
again() {
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "$MAX_RESTARTS" ]; then
        echo "already requeued $MAX_RESTARTS times: not requeued again" >&2
        exit 1
    fi
    echo "requeued to resume from ${1:-the start}" # before scontrol, which ends this script
    if ! patiently scontrol requeue "$SLURM_JOB_ID"; then
        echo "not requeued: scontrol failed; to do it by hand: scontrol requeue $SLURM_JOB_ID" >&2
        exit 1
    fi
}
node_lost() { # whether a node of the job does not answer any more, asked twice
    local pause nodes=${SLURM_JOB_NUM_NODES:-1}
    for pause in 5 0; do
        ! timeout 60 srun --overlap --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 true || return 1
        sleep "$pause"
    done 2>/dev/null
}
[ "$code" != 4 ] || exit 4 # training is done, though ranks died on the way: nothing to come back for
# 85: saved and stopped with steps left. If some ranks end a moment after the first, srun returns another code.
if [ "$code" = 85 ] || { [ "$code" != 0 ] && [ -n "$warned" ]; }; then
    if [ "$(newest)" = "$before" ]; then
        echo "no progress since ${before:-the start}: not requeued" >&2
        exit 1
    fi
    again "$(newest)"
elif [ "$code" != 0 ]; then # Slurm does not requeue a preempted job that ends by itself
    case $(patiently scontrol show job --oneliner "$SLURM_JOB_ID") in
    *JobState=RUNNING*PreemptTime=[0-9]*) again "$(newest)" ;;
    *)  # Slurm requeues the job when it notices that a node is lost; where the ranks ended before, this does. Wrong
        # options (2) and a run that diverged (3) would come back as they are.
        if [ "$(logged)" != "$had" ] && [ "$code" != 2 ] && [ "$code" != 3 ] && node_lost; then
            echo "a node of the job is lost" >&2
            again "$(newest)"
        fi
        ;;
    esac
fi
exit "$code"
"""
