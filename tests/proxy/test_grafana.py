"""The dashboard for Grafana asks for metrics and labels that the daemon has."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.raw_http import get, post, raw_client
from tests.fakes.replay_backend import Engine, tabled
from tests.fakes.serving import replaying

BOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
OF_PROMETHEUS = {"instance", "le"}


async def test_every_panel_asks_for_metrics_and_labels_that_the_daemon_exports() -> None:
    body = json.dumps({"model": "replay", "messages": [{"role": "user", "content": "short"}]}).encode()
    async with (
        replaying(Engine(answer_tokens=tabled({"short": 3}))) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        assert (await client.ask(post("/v1/chat/completions", body))).status == 200
        scrape = get("/_clairvoyant/metrics", host=daemon.base_url.removeprefix("http://"))
        text = (await client.ask(scrape)).body.decode()
    labels = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    targets = [target for panel in json.loads(BOARD.read_text())["panels"] for target in panel["targets"]]
    assert len(targets) >= 12
    for target in targets:
        names = re.findall(r"\bclairvoyant_\w+", target["expr"])
        assert names, target
        wanted = re.findall(r"{{(\w+)}}", target["legendFormat"])
        wanted += [label for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in by.split(", ")]
        for name in names:
            assert name in labels, name
            assert set(wanted) <= labels[name] | OF_PROMETHEUS, target
