"""A Ray cluster on this machine, started once: three nodes with a fake GPU each (``fake_machine``)."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NODES = {"alpha": "sm90", "beta": "sm90", "gamma": "sm100"}


@pytest.fixture
def add_node(ray_cluster):
    """Adds a node with one fake GPU, and what is given in its environment, to the cluster until the test ends."""
    added = []

    def add(name, arch, **environment):
        added.append(_add_node(ray_cluster, name, arch, environment))
        return added[-1]

    yield add
    for node in added:
        if node in ray_cluster.worker_nodes:
            ray_cluster.remove_node(node, allow_graceful=False)


def _add_node(cluster, name, arch, environment=None):
    """A node with one fake GPU. Its memory for objects is the least that Ray takes: nothing large is sent."""
    variables = {"FAKE_GPUS": f"{name}:{arch}", **(environment or {})}
    return cluster.add_node(num_cpus=0, num_gpus=1, object_store_memory=80_000_000, env_vars=variables)


@pytest.fixture(scope="session")
def ray_cluster():
    """Its ``address`` is what ``--ray`` takes."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(TESTS))
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        noticing = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}  # that a node is dead
        head = {"num_cpus": 0, "object_store_memory": 80_000_000, "_system_config": noticing}
        made = Cluster(initialize_head=True, head_node_args=head)
        for name, arch in NODES.items():
            _add_node(made, name, arch)
        yield made
        made.shutdown()
