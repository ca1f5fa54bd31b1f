"""What a plan may ask of this worker, and whether a settled reading still agrees with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.rpc.errors import InvalidRequestError, PlanRefusedError, SourceRefusedError
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from services.worker.config import WorkerSettings
from services.worker.plan_checks import (
    check_plan,
    check_schemes,
    source_folder,
)
from tests.engines.worker_server import rehearsal_models, rehearsal_plan

GIB = 2**30


@pytest.fixture
def settings(tmp_path: Path) -> WorkerSettings:
    rehearsal_models(tmp_path / "models")
    (tmp_path / "allowed" / "mine").mkdir(parents=True)
    return WorkerSettings(models_dir=tmp_path / "models", worker_model_paths=str(tmp_path / "allowed"))


def check(plan: plan_pb2.Plan, settings: WorkerSettings, trusted: str = "") -> None:
    check_plan(plan, settings, lambda repo: repo == trusted)


def test_a_dense_resident_plan_of_a_bundled_folder_passes(settings: WorkerSettings) -> None:
    check(rehearsal_plan(), settings)


def test_a_plan_without_its_fields_is_an_invalid_request(settings: WorkerSettings) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(plan_pb2.Plan(), settings)
    assert set(caught.value.violations) >= {"plan.model", "plan.pipeline_class", "plan.components"}


def spoil_scheme(plan: plan_pb2.Plan) -> None:
    plan.components[0].scheme = device_pb2.SCHEME_UNSPECIFIED


def spoil_tier(plan: plan_pb2.Plan) -> None:
    plan.offload = plan_pb2.OFFLOAD_TIER_UNSPECIFIED


def spoil_kind(plan: plan_pb2.Plan) -> None:
    plan.source.kind = checkpoint_pb2.CHECKPOINT_KIND_GGUF


def spoil_engine(plan: plan_pb2.Plan) -> None:
    plan.engine = plan_pb2.ENGINE_NATIVE


def spoil_adapters(plan: plan_pb2.Plan) -> None:
    plan.adapters.adapters.add()


def spoil_hooks(plan: plan_pb2.Plan) -> None:
    plan.assembly_hooks.append("no-such-rule")


@pytest.mark.parametrize("spoil", [spoil_scheme, spoil_tier, spoil_kind, spoil_engine, spoil_adapters, spoil_hooks])
def test_what_the_worker_can_not_do_is_refused_by_name(settings: WorkerSettings, spoil: object) -> None:
    plan = rehearsal_plan()
    spoil(plan)  # type: ignore[operator]
    with pytest.raises(PlanRefusedError):
        check(plan, settings)


def test_a_scheme_runs_only_where_this_device_was_seen_to_run_it() -> None:
    plan, seen = rehearsal_plan(), device_pb2.Device()
    check_schemes(plan, None)
    plan.components[0].scheme = device_pb2.SCHEME_INT8
    with pytest.raises(PlanRefusedError, match="INT8 was not seen to run"):
        check_schemes(plan, seen)
    probe = seen.probes.add(scheme=device_pb2.SCHEME_INT8, works=False, reason="no kernel")
    with pytest.raises(PlanRefusedError, match="no kernel"):
        check_schemes(plan, seen)
    probe.works = True
    check_schemes(plan, seen)


@pytest.mark.parametrize("path", ["/etc", "{allowed}/../secret", "{allowed}", "{allowed}/missing"])
def test_a_path_outside_the_allowed_folders_or_missing_is_refused(settings: WorkerSettings, path: str) -> None:
    source = checkpoint_pb2.CheckpointSource(path=path.format(allowed=settings.model_folders[0]))
    with pytest.raises(SourceRefusedError):
        source_folder(source, settings)


@pytest.mark.parametrize("name", ["..", "../allowed/mine", "", "nobody"])
def test_a_bundled_name_never_leads_out_of_the_models_folder(settings: WorkerSettings, name: str) -> None:
    with pytest.raises(SourceRefusedError):
        source_folder(checkpoint_pb2.CheckpointSource(bundled=name), settings)


def test_a_symbolic_link_is_judged_by_where_it_leads(settings: WorkerSettings) -> None:
    link = settings.model_folders[0] / "link"
    link.symlink_to("/etc")
    with pytest.raises(SourceRefusedError, match="lies outside"):
        source_folder(checkpoint_pb2.CheckpointSource(path=str(link)), settings)


def test_a_repository_is_loaded_only_if_the_catalogue_or_the_operator_trusts_it(settings: WorkerSettings) -> None:
    plan = rehearsal_plan()
    plan.source.repo_id = "owner/model"
    with pytest.raises(SourceRefusedError, match="DARKROOM_WORKER_TRUSTED_REPOS"):
        check(plan, settings)
    check(plan, settings, trusted="owner/model")
    for trusted in ("owner", "other, owner/model"):
        check(plan, settings.model_copy(update={"worker_trusted_repos": trusted}))
