"""What an endpoint answers, as numbers."""

import urllib.request
from collections import Counter
from typing import Any

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """One answer of an endpoint: samples by name, each with its labels."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(url, timeout=30) as answer:
            self.families = list(text_string_to_metric_families(answer.read().decode()))
        self.samples = [sample for family in self.families for sample in family.samples]

    def get(self, name: str, **labels: str) -> float:
        """The sum over the samples of a name with at least these labels."""
        return sum(one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items())

    def by(self, name: str, label: str) -> dict[str, float]:
        """What is not 0."""
        found: Counter[str] = Counter()
        for one in self.samples:
            if one.name == name and one.value:
                found[one.labels[label]] += one.value
        return dict(found)


def scrape(client: Any) -> Scrape:
    return Scrape(client.stats()["metrics_url"])
