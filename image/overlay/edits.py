# SPDX-License-Identifier: Apache-2.0
"""What the overlay changes in vLLM 0.32.0: a list of exact edits, and the files that it adds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RELEASE = "0.32.0"
_DYNAMIC = "vllm/v1/spec_decode/dynamic"
_SOURCES = Path(__file__).parent / "dynamic"

ADDED = {
    f"{_DYNAMIC}/{name}.py": _SOURCES / f"{name}.py"
    for name in (
        "adaptive_depth",
        "decode_shapes",
        "depth_ladder",
        "depth_policy",
        "draft_tally",
        "draft_telemetry",
    )
}
"""Path in the tree → source. ``decode_shapes`` is the recipe's own shapes module, by a link."""

RELIED_ON = (
    "vllm/v1/core/sched/async_scheduler.py",
    "vllm/v1/core/sched/output.py",
    "vllm/v1/spec_decode/dynamic/utils.py",
    "vllm/v1/worker/gpu/model_runner.py",
    "vllm/v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py",
)
"""Files left as they are whose behaviour the edits depend on."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement.

    Parameters:
        path: file in the tree.
        before: text that occurs exactly once in the file before the edit.
        after: what stands there afterwards; it occurs exactly once, too.
    """

    path: str
    before: str
    after: str


def _added_after(path: str, anchor: str, text: str) -> Edit:
    return Edit(path, anchor, anchor + text)


def _added_before(path: str, anchor: str, text: str) -> Edit:
    return Edit(path, anchor, text + anchor)


_SPECULATIVE = "vllm/config/speculative.py"
_VLLM = "vllm/config/vllm.py"
_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_GRAPHS = "vllm/v1/worker/gpu/cudagraph_utils.py"
_DRAFT_GRAPHS = "vllm/v1/worker/gpu/spec_decode/target_dependent_ar/cudagraph_utils.py"

EDITS = (
    _added_before(
        _SPECULATIVE,
        """    # params generated in the post-init stage
    draft_model_config: SkipValidation""",
        '''    # adaptive draft depth control
    adaptive_speculative_tokens_window: int | None = Field(
        default=None, gt=0, strict=True
    )
    """Scheduler steps observed at the lowest depth before the draft depth of the
    whole batch moves on its ladder. None keeps the depth fixed."""
    adaptive_speculative_tokens_bar_windows: int = Field(
        default=0, ge=0, strict=True
    )
    """Windows for which a deeper rung stays barred after it failed. 0: never."""
    adaptive_speculative_tokens_settle_steps: int = Field(
        default=0, ge=0, strict=True
    )
    """Steps not counted after a change of depth."""
    adaptive_speculative_tokens_start: int | None = Field(
        default=None, gt=0, strict=True
    )
    """Rung to start from. None: the lowest."""

''',
    ),
    Edit(
        _SPECULATIVE,
        """        return self.num_speculative_tokens_per_batch_size is not None
""",
        """        return (
            self.num_speculative_tokens_per_batch_size is not None
            or self.adaptive_speculative_tokens_window is not None
        )
""",
    ),
    _added_before(
        _SPECULATIVE,
        """        if self.rejection_sample_method == "synthetic":
            # Consolidate to per-position rates
""",
        """        from vllm.v1.spec_decode.dynamic.depth_ladder import check_settings

        check_settings(self)

""",
    ),
    _added_before(
        _VLLM,
        """        # final check of cudagraph mode after all possible updates
""",
        """        self._check_adaptive_depth_graphs()

""",
    ),
    _added_before(
        _VLLM,
        """    def _maybe_disable_dynamic_sd_for_data_parallel(self) -> None:
""",
        '''    def _check_adaptive_depth_graphs(self) -> None:
        """Refuse an adaptive draft depth without FULL graphs for all of its shapes."""
        from vllm.platforms import current_platform
        from vllm.v1.spec_decode.dynamic.depth_ladder import check_graph_settings

        mode = self.compilation_config.cudagraph_mode
        established = check_graph_settings(
            self.speculative_config,
            cuda_graphs=current_platform.support_static_graph_mode(),
            v2_runner=self.use_v2_model_runner,
            full_decode=mode.separate_routine()
            and mode.decode_mode() == CUDAGraphMode.FULL,
            mode=mode.name,
            capture_sizes=self.compilation_config.cudagraph_capture_sizes or (),
            max_seqs=self.scheduler_config.max_num_seqs,
            data_parallel=self.parallel_config.data_parallel_size,
        )
        if established is not None:
            logger.info_once(established)

''',
    ),
    Edit(
        _VLLM,
        """                    if (
                        speculative_config is not None
                        and speculative_config.uses_dynamic_speculative_decoding()
                    ):
                        from vllm.v1.spec_decode.dynamic.utils import (
                            build_dynamic_sd_schedule_lookup,
                        )
""",
        """                    from vllm.v1.spec_decode.dynamic.decode_shapes import (
                        GraphManager,
                        capture_sizes,
                    )
                    from vllm.v1.spec_decode.dynamic.depth_ladder import (
                        adaptive_ladder,
                    )

                    ladder = adaptive_ladder(speculative_config)
                    if ladder is not None:
                        # Every shape is a tier of its own, so that no count of
                        # requests between the usual ones is left out.
                        decode_tiers = [
                            (tokens, 1)
                            for tokens in capture_sizes(
                                GraphManager.UPSTREAM, ladder, max_num_seqs
                            )
                        ]
                    elif (
                        speculative_config is not None
                        and speculative_config.uses_dynamic_speculative_decoding()
                    ):
                        from vllm.v1.spec_decode.dynamic.utils import (
                            build_dynamic_sd_schedule_lookup,
                        )
""",
    ),
    _added_before(
        _SCHEDULER,
        """from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
""",
        """from vllm.v1.spec_decode.dynamic.adaptive_depth import AdaptiveDepth
""",
    ),
    _added_after(
        _SCHEDULER,
        """        self.dynamic_sd_lookup: list[int] | None = None
""",
        """        self.adaptive_depth = AdaptiveDepth.create(
            speculative_config,
            max_seqs=self.scheduler_config.max_num_seqs,
            log=logger.info,
        )
        if self.adaptive_depth is not None:
            self.dynamic_sd_lookup = self.adaptive_depth.lookup
""",
    ),
    _added_after(
        _SCHEDULER,
        """                    if request.num_output_placeholders > 0:
                        request.num_output_placeholders -= num_rejected
""",
        """                    if self.adaptive_depth is not None:
                        # Drafts that the grammar ruled out were not verified.
                        invalid = scheduler_output.num_invalid_spec_tokens or {}
                        self.adaptive_depth.observe(
                            num_draft_tokens - invalid.get(req_id, 0),
                            num_accepted,
                            request.num_computed_tokens,
                        )
""",
    ),
    _added_before(
        _SCHEDULER,
        """        # Remove the stopped requests from the running and waiting queues.
        if stopped_running_reqs:
""",
        """        if self.adaptive_depth is not None:
            self.adaptive_depth.end_step(scheduler_output.num_spec_tokens_to_schedule)

""",
    ),
    _added_before(
        _GRAPHS,
        """from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
""",
        """from vllm.v1.spec_decode.dynamic.depth_ladder import (
    owned_query_lengths,
    require_coverage,
)
""",
    ),
    Edit(
        _GRAPHS,
        """        if not (self.cudagraph_mode and capture_sizes):
            return

        capture_sizes = sorted(capture_sizes)
""",
        """        if not (self.cudagraph_mode and capture_sizes):
            self._require_adaptive_coverage()
            return

        capture_sizes = sorted(capture_sizes)
""",
    ),
    Edit(
        _GRAPHS,
        """        speculative_config = self.vllm_config.speculative_config
        if (
            speculative_config
            and speculative_config.uses_dynamic_speculative_decoding()
            and self.decode_query_len > self.vllm_config.num_speculative_tokens
        ):
""",
        """        speculative_config = self.vllm_config.speculative_config
        adaptive_query_lens = owned_query_lengths(
            speculative_config, self.decode_query_len
        )
        if adaptive_query_lens:
            decode_query_lens = list(adaptive_query_lens)
        elif (
            speculative_config
            and speculative_config.num_speculative_tokens_per_batch_size is not None
            and self.decode_query_len > self.vllm_config.num_speculative_tokens
        ):
""",
    ),
    Edit(
        _GRAPHS,
        """                        self._candidates.setdefault(key, []).extend(matching)
                    current_range_start = num_tokens + 1

""",
        '''                        self._candidates.setdefault(key, []).extend(matching)
                    current_range_start = num_tokens + 1

        self._require_adaptive_coverage()

    def _require_adaptive_coverage(self) -> None:
        """Refuse candidates that leave a shape of the draft-depth ladder uncovered."""
        established = require_coverage(
            owned_query_lengths(
                self.vllm_config.speculative_config, self.decode_query_len
            ),
            max_seqs=self.max_num_reqs,
            lora_cases=self.lora_capture_cases,
            full_graphs=[
                desc
                for desc in self._capture_descs.get(CUDAGraphMode.FULL, [])
                if desc.num_ubatches == 1
            ],
            mode=self.cudagraph_mode.name,
            capture_sizes=self.compilation_config.cudagraph_capture_sizes or (),
        )
        if established is not None:
            logger.info_once(established)

''',
    ),
    _added_before(
        _DRAFT_GRAPHS,
        """from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
""",
        """from vllm.v1.spec_decode.dynamic.depth_ladder import adaptive_ladder
""",
    ),
    Edit(
        _DRAFT_GRAPHS,
        """            dense_schedule = build_dynamic_sd_schedule_lookup(
                speculative_config.num_speculative_tokens_per_batch_size,
                vllm_max_batch_size=self.max_num_reqs,
                vllm_num_speculative_tokens=self.vllm_config.num_speculative_tokens,
            )
""",
        """            ladder = adaptive_ladder(speculative_config)
            dense_schedule = (
                list(ladder)
                if ladder is not None
                else build_dynamic_sd_schedule_lookup(
                    speculative_config.num_speculative_tokens_per_batch_size,
                    vllm_max_batch_size=self.max_num_reqs,
                    vllm_num_speculative_tokens=(
                        self.vllm_config.num_speculative_tokens
                    ),
                )
            )
""",
    ),
)
