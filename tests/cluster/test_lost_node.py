"""The long job loses a node: it ends, comes back by itself, and goes on from its newest checkpoint."""


def test_it_goes_on_once_the_node_is_back(login, whole):
    options = (
        "--dataset digits --model softmax --batch-size 16 --epochs 1000 --inject compute:0.02 --checkpoint-every 10"
    )
    number = login.sbatch("--nodes=2", login.edit("long_job", options, ntasks="3"))
    folder = login.folder / f"checkpoints-{number}"
    login.wait_for(lambda: any(folder.glob("step-*[0-9]")), number)
    batch = login.cluster.job(number)["BatchHost"]
    lost = {"host0": "host1", "host1": "host0"}[batch]
    login.cluster.lose(lost)
    try:
        login.wait_for(lambda: login.cluster.job(number)["Restarts"] == "1", number, timeout_s=150)
        newest = max(folder.glob("step-*[0-9]"))
        said = login.cluster.log(login.cluster.job(number))
        assert "a node of the job is lost" in said and f"requeued to resume from {newest}" in said
        state = ["sinfo", "--noheader", f"--nodes={batch}", "--partition=main", "--format=%T"]
        login.wait_for(lambda: login.cluster.run(*state).stdout.strip() == "idle", number)
    finally:
        login.cluster.bring_back(lost)
    login.wait_for(lambda: login.cluster.job(number)["JobState"] == "PENDING", number)
    login.next_turn(number, 1, timeout_s=90)
    assert f"resuming from {newest}" in login.cluster.log(login.cluster.job(number))
    login.cluster.run("scancel", number)
    login.wait_for(lambda: not login.ranks(number), number)
