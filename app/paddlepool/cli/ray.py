"""`paddlepool ray`: serve with replicas under Ray Serve, scaled with the load."""

import argparse
import os
import signal
import threading

from paddlepool.contracts.errors import ConfigError

APPLICATION = "paddlepool"
OBJECT_STORE_BYTES = 200 << 20
"""Size of Ray's object store, if Ray is started here. Bodies only pass through it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare `up` and its options; replicas read all other settings from the environment."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = actions.add_parser("up", help="serve until a signal")
    up.add_argument(
        "--address", help="address of a Ray cluster, or `auto`; default: start Ray on this machine"
    )
    up.add_argument("--host", default="127.0.0.1", help="address to listen on")
    up.add_argument("--port", type=int, default=8000, help="port to listen on")
    up.add_argument("--cpus", help="cores of one replica (default 2)")
    up.add_argument("--min-replicas", help="fewest replicas (default 1)")
    up.add_argument("--max-replicas", help="most replicas (default 4)")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM, then end the application, and Ray if it was started here.

    Raises ConfigError if Ray is not installed or an option is invalid.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read by the import of Ray and by its processes
    try:
        import ray
        from ray import serve
        from ray.serve.config import HTTPOptions, ProxyLocation
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'paddlepool[ray]'") from None
    from pydantic import ValidationError

    from paddlepool.service.scale.ray import application

    options = {"num_cpus": args.cpus, "min_replicas": args.min_replicas}
    options |= {"max_replicas": args.max_replicas}
    try:
        replicas = application(
            {name: value for name, value in options.items() if value is not None}
        )
    except ValidationError as error:
        faults = (
            f"{fault['loc'][0]}: {fault['msg']}, received {fault['input']!r}"
            for fault in error.errors()
        )
        raise ConfigError("; ".join(faults)) from None
    if args.address is None:
        ray.init("local", object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False)
    else:
        ray.init(args.address)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    serve.start(
        proxy_location=ProxyLocation.EveryNode,
        http_options=HTTPOptions(host=args.host, port=args.port),
    )
    serve.run(replicas, name=APPLICATION, route_prefix="/")
    print(f"serving on http://{args.host}:{args.port}", flush=True)
    stopping.wait()
    serve.delete(APPLICATION)
    if args.address is None:
        serve.shutdown()
    ray.shutdown()
    return 0
