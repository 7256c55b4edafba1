"""What ranks of a job find out together: whether they see each other, their cores, clocks and links."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from mpi4py import MPI

from psgd.launch import startup
from psgd.launch.doctor import pairs
from psgd.launch.doctor.check import Check
from psgd.launch.doctor.pairs import Pair
from psgd.runtime.agreement import gather

CLOCK_S = 1.0
_SAME = ("python", "psgd", "mpi", "mpi4py", "numpy", "numba", "thread level")


def checks(comm: MPI.Intracomm, mine: Sequence[Check]) -> list[Check]:
    """All of them. Collective, blocks.

    Args:
        comm: the job's ranks.
        mine: this host's own checks, on the first rank of a host; empty elsewhere.
    """
    facts = gather(comm, startup.facts())
    leaders = startup.leaders(facts)
    gathered = gather(comm, {"checks": [vars(check) for check in mine]})
    hosts = [each["host"] for each in facts]
    found = [Check("ranks", f"{startup.line(facts)}: they see each other")]
    own = {hosts[rank]: [Check(**check) for check in gathered[rank]["checks"]] for rank in leaders}
    found += differing(own)
    crowd = startup.crowded(facts)
    found += [Check("cores of ranks", text, "warning", fix) for text, fix in crowd]
    if not crowd:
        found.append(Check("cores of ranks", "no two ranks share a core by accident"))
    meter = pairs.Meter(comm)
    found.append(_clocks(comm, meter, leaders, hosts))
    inside = [rank for rank, each in enumerate(facts) if each["node"] == facts[comm.rank]["node"]]
    near = meter.tournament(pairs.sample(inside))
    far = meter.tournament(pairs.sample(leaders))
    everyone = gather(comm, {"near": near, "far": far})
    for name, key in (("links in a node", "near"), ("links between nodes", "far")):
        measured = [Pair(*pair) for each in everyone for pair in each[key]]
        found += links(name, measured, hosts, judged=key == "far" or not crowd)
    return found


def differing(own: Mapping[str, Sequence[Check]]) -> list[Check]:
    """What is not fine on hosts other than the first, and software that is not the same on all of them."""
    first, found = next(iter(own)), []
    for host, each in own.items():
        if host != first:
            found += [Check(f"{host}: {c.name}", c.value, c.state, c.fix) for c in each if c.state != "ok"]
    for name in _SAME:
        values = defaultdict(list)
        for host, each in own.items():
            for check in each:
                if check.name == name:
                    values[check.value].append(host)
        if len(values) > 1:
            shown = "; ".join(f"{value} on {', '.join(where[:4])}" for value, where in values.items())
            fix = "use one environment, on a file system that all hosts mount at the same path"
            found.append(Check(f"{name} differs", shown, "warning", fix))
    return found


def _clocks(comm: MPI.Intracomm, meter: pairs.Meter, leaders: Sequence[int], hosts: Sequence[str]) -> Check:
    offset = 0.0
    for leader in leaders[1:]:
        if comm.rank == leaders[0]:
            meter.clock_offset(leader, asks=False)
        elif comm.rank == leader:
            offset = -meter.clock_offset(leaders[0], asks=True)  # how far this clock is ahead of the first host's
    offsets = [each["offset"] for each in gather(comm, {"offset": offset})]
    worst = max(range(len(offsets)), key=lambda rank: abs(offsets[rank]))
    if len(leaders) == 1:
        return Check("clocks", "one host, one clock")
    if abs(offsets[worst]) <= CLOCK_S:
        return Check("clocks", f"within {1e3 * abs(offsets[worst]):.2g} ms of {hosts[leaders[0]]}'s")
    way = "ahead of" if offsets[worst] > 0 else "behind"
    value = f"{hosts[worst]} is {abs(offsets[worst]):.1f} s {way} {hosts[leaders[0]]}"
    return Check("clocks", value, "warning", "times in logs and files will not match; start chronyd or ntpd there")


def links(name: str, measured: Sequence[Pair], hosts: Sequence[str], judged: bool = True) -> list[Check]:
    """Latencies and rates of one kind of links, and the slow ones among them."""
    if not measured:
        return []
    latencies = [1e6 * pair.latency_s for pair in measured]
    rates = [pair.bytes_per_s / 1e6 for pair in measured]
    value = (
        f"{_span(latencies)} us, {_span(rates)} MB/s over {len(measured)} {'pair' if len(measured) == 1 else 'pairs'}"
    )
    found = [Check(name, value)]
    late = sorted(pairs.slow(measured), key=lambda pair: pair.bytes_per_s) if judged else []
    host = pairs.culprit(late, measured, hosts)
    if host is not None:
        value = f"{host}: part of all {len(late)} slow pairs, {_pair(late[0], hosts)}"
        found.append(Check("slow host", value, "warning", f"check {host}'s link, or exclude it: --exclude={host}"))
    else:
        fix = "check the link between them"
        found += [Check("slow pair", _pair(pair, hosts), "warning", fix) for pair in late[:4]]
    return found


def _pair(pair: Pair, hosts: Sequence[str]) -> str:
    return (
        f"rank {pair.a} ({hosts[pair.a]}) and rank {pair.b} ({hosts[pair.b]}): "
        f"{1e6 * pair.latency_s:.3g} us, {pair.bytes_per_s / 1e6:.3g} MB/s"
    )


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
