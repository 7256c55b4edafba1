import gc
import threading

from psgd.collectives.mpi.watchdog import Backgrounds


class Call:
    def __init__(self):
        self.times = 0

    def advance(self):
        self.times += 1


def test_each_is_advanced_once_however_often_it_was_added():
    all_, one, two = Backgrounds(), Call(), Call()
    for each in (one, two, one):
        all_.add(each)
    all_.advance()
    assert (one.times, two.times) == (1, 1)
    all_.discard(one)
    all_.discard(one)
    all_.advance()
    assert (one.times, two.times) == (1, 2)


def test_none_is_kept_alive():
    all_, one = Backgrounds(), Call()
    all_.add(one)
    all_.add(Call())
    gc.collect()
    all_.advance()
    assert one.times == 1
    all_.add(two := Call())
    assert len(all_._all) == 2 and two.times == 0


def test_others_may_come_and_go_meanwhile():
    all_ = Backgrounds()

    class Adding(Call):
        def advance(self):
            super().advance()
            all_.discard(self)
            all_.add(later)

    later, adding = Call(), Adding()
    all_.add(adding)
    all_.advance()
    assert (adding.times, later.times) == (1, 0)
    all_.advance()
    assert (adding.times, later.times) == (1, 1)


def test_threads_lose_none():
    all_, calls = Backgrounds(), [Call() for _ in range(400)]
    threads = [threading.Thread(target=lambda k=k: [all_.add(c) for c in calls[k::4]]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    all_.advance()
    assert {call.times for call in calls} == {1}
