"""`grid predict`, as it is printed."""

import json

KNOWN = {
    "task_type": "train.py", "runs": 200,
    "memory": {
        "bytes": 6 * 10**9, "runs": 200, "confidence": 0.995, "within": 1.0,
        "largest_bytes": 5_800_000_000, "median_bytes": 2 * 10**9,
    },
    "durations": [
        {"quantile": 0.5, "seconds": 0.25, "held": 0.52},
        {"quantile": 0.9, "seconds": 3700.0, "held": None},
    ],
}  # fmt: skip


def test_a_prediction_says_what_it_is_worth(fake, grid, capsys):
    fake.answers["GET", "/predict/train.py"] = KNOWN
    assert grid("predict", "train.py") == 0
    suggestion = "ask for 6 GB: covers 100 % of the last 200 runs, the next one"
    assert capsys.readouterr().out.splitlines() == [
        "train.py: 200 runs known",
        f"  memory    {suggestion} with a probability of 99 %",
        "            largest 5.8 GB, median 2 GB",
        "  duration  50 % end within 0.2 s (held for 52 % so far)",
        "  duration  90 % end within 1:01:40",
    ]


def test_few_runs_predict_nothing_and_say_so(fake, grid, capsys):
    fake.answers["GET", "/predict/new"] = {
        "task_type": "new", "runs": 1, "memory": None, "durations": [],
    }  # fmt: skip
    assert grid("predict", "new") == 0
    assert capsys.readouterr().out.splitlines() == [
        "new: 1 run known",
        "  Nothing can be predicted before three runs have ended.",
    ]
    assert grid("predict", "--json", "new") == 0
    assert json.loads(capsys.readouterr().out)["memory"] is None
