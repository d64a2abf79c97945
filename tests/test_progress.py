"""How far and how long, in words."""
from latentsync_rtx.lipsync.progress import Pace, clock_time


def test_time_left_is_told_once_it_is_known():
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert pace.tell(4, 20, "denoise") == "denoise: 4 of 20", "four were done before: resumed"
    now[0] = 0.5
    assert pace.tell(5, 20, "denoise") == "denoise: 5 of 20"
    now[0] = 8.0
    assert pace.tell(8, 20, "denoise") == "denoise: 8 of 20, 0:24 left", "two seconds each since the first call"
    now[0] = 10.0
    assert pace.tell(8, 20, "denoise") == "denoise: 8 of 20, 0:22 left", "asked in the middle of a long step"
    now[0] = 11.0
    assert pace.tell(0, 10, "decode") == "decode: 0 of 10", "a new stage begins anew"
    now[0] = 14.0
    assert pace.tell(10, 10, "decode") == "decode: 10 of 10"
    assert [clock_time(seconds) for seconds in (7.4, 750, 3900)] == ["0:07", "12:30", "1:05:00"]
