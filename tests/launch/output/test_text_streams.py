import io

from psgd.launch.output.text_streams import Both, Lines


class Writes(io.StringIO):
    """Remembers each write."""

    def __init__(self):
        super().__init__()
        self.all = []

    def write(self, text):
        self.all.append(text)
        return super().write(text)


def test_a_line_is_one_write_behind_its_prefix():
    out = Writes()
    lines = Lines(out, "[2/4] ")
    for part in ("a", "b\nc", "", "d\n\ne\n", "last"):
        lines.write(part)
    assert out.all == ["[2/4] ab\n", "[2/4] cd\n", "[2/4] \n", "[2/4] e\n"]
    lines.finish()
    lines.finish()
    assert out.all[4:] == ["[2/4] last\n"]
    assert not lines.isatty()
    print("x", "y", file=lines)
    assert out.all[5:] == ["[2/4] x y\n"]


def test_no_carriage_returns():
    out = Writes()
    lines = Lines(out, "")
    for percent in range(0, 101, 10):
        lines.write(f"\r{percent} %")
        assert len(lines._rest) < 20  # a bar that never ends is not kept
    lines.write("\nwindows\r\n10 %\r")
    lines.write("20 %\r\n")
    lines.finish()
    assert out.getvalue() == "100 %\nwindows\n20 %\n"


def test_both_get_all():
    one, two = Writes(), Writes()
    print("a", "b", file=Both(one, two))
    assert one.getvalue() == two.getvalue() == "a b\n"
