"""Runs in an environment with SimGrid: when each flow of a topology ends. Reads JSON, prints JSON.

    {"links": [bit/s, ..], "flows": [[start, bits, [link, ..]], ..]} -> [end, ..]

SimGrid's network model CM02 without latencies and without traffic of acknowledgements is max-min fair sharing.
"""

from __future__ import annotations

import json
import sys

from simgrid import Comm, Engine, this_actor  # type: ignore[import-not-found]

OPTIONS = ("network/model:CM02", "network/crosstraffic:0", "precision/timing:1e-12", "precision/work-amount:1e-9")


def main() -> None:
    """Solve the topology on standard input."""
    topology = json.load(sys.stdin)
    engine = Engine(["oracle", "--log=root.thresh:error", *(f"--cfg={option}" for option in OPTIONS)])
    zone = engine.netzone_root
    links = [zone.add_link(f"link{place}", rate / 8).seal() for place, rate in enumerate(topology["links"])]
    ends = [0.0] * len(topology["flows"])

    def send(flow: int, start: float, nbytes: int, source: object, target: object) -> None:
        this_actor.sleep_until(start)
        Comm.sendto(source, target, nbytes)
        ends[flow] = Engine.clock

    for flow, (start, bits, way) in enumerate(topology["flows"]):
        source, target = (zone.add_host(f"{end}{flow}", 1e9).seal() for end in ("source", "target"))
        zone.add_route(source, target, [links[place] for place in way])
        source.add_actor(f"flow{flow}", send, flow, start, round(bits / 8), source, target)
    zone.seal()
    engine.run()
    print(json.dumps(ends))


main()
