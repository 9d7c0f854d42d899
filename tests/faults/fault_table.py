"""Which test holds which public fault, or why a fault has nothing to happen to here.

The numbers are those of the list of reports that users of reward models and of interpretability
tools filed in public trackers; gaps are theirs. A row is either a tuple of tests, written as
``<path under tests/>::<function>``, or the reason why there is none.
"""

from __future__ import annotations

_ANATOMY = "backbone/test_families.py::"
_LOAD = "signals/test_load_signal.py::"
_CONFORM = "signals/test_conformance.py::"
_HEADS = "signals/test_heads.py::"
_OPEN = "signals/test_heads_open.py::"
_ADAPTER = "signals/test_heads_adapter.py::"
_PADDING = "faults/test_fault_padding.py::"
_PRECISION = "faults/test_fault_precision.py::"
_TEXTS = "faults/test_fault_texts.py::"
_WEIGHTS = "faults/test_fault_heads.py::"
_MEMORY = "faults/test_fault_memory.py::"
_PARTS = "faults/test_fault_attribution.py::"

FAULTS: dict[int, tuple[str, ...] | str] = {
    # Padding and pooling
    1: (
        _PADDING + "test_pad_is_eos_never_reads_inside_the_prompt",
        _ANATOMY + "test_pad_is_eos_reads_where_transformers_reads",
    ),
    2: (
        _PADDING + "test_padding_on_any_side_of_the_input",
        _ANATOMY + "test_score_does_not_depend_on_batch_order_or_padding",
    ),
    3: (_PADDING + "test_the_tokenizers_padding_side_is_of_no_concern",),
    4: (_PADDING + "test_the_width_padded_to_is_of_no_concern",),
    6: (
        _PADDING + "test_padding_on_any_side_of_the_input",
        "backbone/test_zoo.py::test_the_score_does_not_depend_on_the_batch_or_on_padding",
    ),
    7: (
        _PADDING + "test_no_pad_in_the_configuration_or_the_tokenizer",
        _ANATOMY + "test_no_pad_in_the_configuration_reads_the_last_token",
    ),
    8: (_PADDING + "test_no_pad_in_the_configuration_or_the_tokenizer",),
    9: (_PADDING + "test_batches_of_1_2_3_and_7_give_the_same_scores_and_ranking",),
    10: (
        _PADDING + "test_only_the_read_token_decides_the_score",
        _CONFORM + "test_a_read_index_shifted_by_one",
    ),
    12: (_PADDING + "test_turns_that_each_end_with_the_end_token",),
    13: (
        _PADDING + "test_padding_on_any_side_of_the_input",
        _PADDING + "test_the_mask_decides_what_padding_is",
    ),
    14: (
        _ANATOMY + "test_left_padding_in_the_trunk_changes_nothing",
        _CONFORM + "test_a_read_that_assumes_padding_on_the_right",
    ),
    15: (
        _PADDING + "test_up_to_eight_pads_in_the_trunk_move_nothing",
        _CONFORM + "test_position_ids_that_are_not_passed",
    ),
    16: (
        _PADDING + "test_activations_at_real_tokens_are_the_same_in_a_batch",
        _CONFORM + "test_a_mask_that_is_all_ones",
    ),
    # Precision
    18: (
        _PRECISION + "test_the_attention_kernel_is_recorded",
        _PRECISION + "test_soft_caps_are_never_run_under_a_kernel_that_drops_them",
    ),
    19: (
        _PRECISION + "test_the_batchs_effect_in_half_precision_is_measured",
        _PADDING + "test_batches_of_1_2_3_and_7_give_the_same_scores_and_ranking",
        "test_cli.py::test_half_precision_says_how_exact_it_is",
    ),
    20: (
        _PRECISION + "test_where_alone_and_batched_first_part",
        _PRECISION + "test_float32_agrees_under_either_kernel",
    ),
    21: (
        _PRECISION + "test_hooked_and_plain_forward_are_bit_equal_in_half_precision",
        _ANATOMY + "test_hooked_forward_is_bit_equal_to_the_plain_one",
    ),
    23: (_PRECISION + "test_the_norms_of_every_order_are_the_models_own_in_its_dtype",),
    24: (_PRECISION + "test_ties_of_a_bfloat16_head_are_not_ours",),
    25: "no method here divides by the difference of two inputs (DeepLIFT's rule); that gradients "
    "are finite in float16 is row 68",
    26: (
        _PRECISION + "test_directions_stay_float32_beside_a_half_precision_trunk",
        _HEADS + "test_a_float32_head_on_a_bfloat16_trunk_stays_float32",
    ),
    # Template, BOS, EOS
    27: (
        _TEXTS + "test_one_bos_whoever_brings_it",
        "backbone/test_tokenise_ends.py::test_how_many_bos",
        "backbone/test_tokenise_ends.py::test_a_text_that_doubles_bos_itself",
        _CONFORM + "test_two_bos",
    ),
    28: (
        _TEXTS + "test_a_model_trained_without_or_with_bos",
        _TEXTS + "test_bos_makes_a_difference_that_is_on_record",
        "backbone/test_tokenise_ends.py::test_the_bos_rule_is_recorded",
    ),
    29: (
        _TEXTS + "test_without_a_template_the_text_that_was_scored_is_said",
        "backbone/test_tokenise_templates.py::test_without_one_the_text_is_plain_and_says_so",
    ),
    30: (
        _TEXTS + "test_a_text_ends_as_it_did_in_training",
        "backbone/test_tokenise_ends.py::test_eos_is_added_where_it_is_asked_for",
    ),
    31: (_TEXTS + "test_every_method_builds_the_same_ids",),
    32: (
        _TEXTS + "test_a_text_ends_as_it_did_in_training",
        "backbone/test_tokenise_ends.py::test_overwriting_as_openrlhf_does",
        "backbone/test_tokenise_ends.py::test_bos_and_eos_survive_truncation",
    ),
    33: (_TEXTS + "test_an_end_token_inside_the_prompt_does_not_count_as_the_end",),
    35: (_HEADS + "test_a_text_without_the_gates_pattern_is_refused",),
    37: (_TEXTS + "test_one_bos_whoever_brings_it",),
    # Head lost or random
    38: (
        _WEIGHTS + "test_the_head_that_is_loaded_is_the_one_in_the_file",
        _ADAPTER + "test_an_adapter_with_its_head",
        _ADAPTER + "test_a_removed_head_is_named",
    ),
    39: (
        _HEADS + "test_a_head_scores_as_its_formula",
        _HEADS + "test_a_renamed_key_is_named",
        _OPEN + "test_two_heads_are_named_and_head_settles_it",
    ),
    41: (
        _WEIGHTS + "test_three_processes_give_the_same_bits",
        _LOAD + "test_a_missing_head_is_named",
        _LOAD + "test_a_saved_model_scores_as_before",
    ),
    42: (
        _WEIGHTS + "test_the_head_that_is_loaded_is_the_one_in_the_file",
        _WEIGHTS + "test_no_weight_is_ever_rewritten",
    ),
    43: (
        _HEADS + "test_a_head_scores_as_its_formula",  # a head in the same file and in its own
        _OPEN + "test_keys_decide_where_a_native_class_name_hides_another_format",
    ),
    44: (
        _WEIGHTS + "test_three_processes_give_the_same_bits",
        _OPEN + "test_fresh_processes_give_equal_bits",
    ),
    45: (
        _WEIGHTS + "test_every_key_is_needed_and_named_when_it_is_gone",
        _WEIGHTS + "test_a_wrappers_prefix_is_understood_or_refused",
        _WEIGHTS + "test_a_trunk_without_its_prefix_is_understood_or_refused",
        _LOAD + "test_a_missing_trunk_key_is_named",
    ),
    47: "no dictionary of features is loaded here, so there is none whose activation could be "
    "taken for another; the activation of a head is part of its convention, see row 39",
    48: (
        _ADAPTER + "test_an_adapter_with_its_head",
        _ADAPTER + "test_a_value_head_beside_an_adapter",
    ),
    # Post-processing of the scalar
    49: (_WEIGHTS + "test_the_score_is_the_raw_logit",),
    50: (  # a classifier is a reward model here, under whatever class name it was saved
        _LOAD + "test_a_saved_model_scores_as_before",
        _OPEN + "test_keys_decide_where_a_native_class_name_hides_another_format",
    ),
    52: (
        _WEIGHTS + "test_the_read_token_is_printed_with_its_index",
        "backbone/test_tokenise_explain.py::test_a_short_item_in_full",
    ),
    # Several devices
    53: (
        _MEMORY + "test_the_read_index_goes_to_the_device_of_the_values",
        _HEADS + "test_indices_follow_the_states_device",
    ),
    54: (_MEMORY + "test_a_value_put_in_place_takes_the_dtype_of_what_it_replaces",),
    55: (_WEIGHTS + "test_no_weight_is_ever_rewritten",),
    56: (_MEMORY + "test_a_value_put_in_place_takes_the_dtype_of_what_it_replaces",),
    # Memory and speed
    57: (
        _MEMORY + "test_a_sweep_keeps_the_rows_it_reads_and_no_more",
        _MEMORY + "test_no_graph_is_built_where_no_gradient_is_asked_for",
    ),
    58: (_MEMORY + "test_capture_of_one_site_keeps_one_tensor",),
    59: (
        _MEMORY + "test_fifty_patches_leave_nothing_behind",
        _MEMORY + "test_repeated_measurements_leave_nothing_behind",
    ),
    60: (_ANATOMY + "test_prefix_curve_is_the_score_of_the_cut_ids",),
    # Wrong attribution
    61: (
        _ANATOMY + "test_lens_applied_is_head_of_norm_of_the_stream",
        "answer_keys/test_hand_built.py::test_lens_on_paper",
    ),
    62: (
        _PARTS + "test_parts_add_up_for_every_row_of_the_head",
        _ANATOMY + "test_leaving_the_final_norm_out_does_not_add_up",
    ),
    63: (
        _PARTS + "test_what_half_precision_loses_is_a_part_of_its_own",
        _ANATOMY + "test_writes_add_up_to_the_score",
    ),
    64: (
        _PARTS + "test_a_difference_of_two_texts_is_complete",
        _PARTS + "test_the_same_text_on_both_sides_differs_in_nothing",
        _ANATOMY + "test_attribution_sums_to_the_margin",
    ),
    65: "integrated gradients are not offered yet; they come with their completeness error",
    66: (
        _PARTS + "test_gradients_reach_every_layer",
        _ANATOMY + "test_gradient_agrees_with_finite_differences",
    ),
    68: (_PARTS + "test_gradients_of_a_padded_batch_are_finite_and_those_of_each_text",),
    # Grouped heads, caches, offsets, quantised weights, experts, several models
    69: (_PARTS + "test_a_query_head_under_grouped_keys",),
    70: (
        _PARTS + "test_values_of_a_group_serve_its_query_heads",
        _ANATOMY + "test_source_tokens_add_up_to_the_attention_write",
    ),
    72: (
        "backbone/test_tokenise_spans.py::test_offsets_that_lie_are_found_out_and_replaced",
        "backbone/test_tokenise_spans.py::test_offsets_of_other_ids_do_not_count",
        _CONFORM + "test_offsets_that_lie",
    ),
    73: (
        _TEXTS + "test_spans_cover_the_text_whatever_characters_it_has",
        "backbone/test_tokenise_spans.py::test_special_tokens_inside_the_text_have_their_own_spans",
    ),
    74: (
        _PARTS + "test_packed_weights_are_used_as_they_act",
        _MEMORY + "test_a_value_put_in_place_takes_the_dtype_of_what_it_replaces",
    ),
    76: (_WEIGHTS + "test_switches_of_the_configuration_do_not_change_the_score",),
    78: (  # of two models' numbers none is subtracted; signs and label counts are settled at load
        _HEADS + "test_a_signal_made_of_a_head",
        "test_documented_api.py::test_several_rows_are_several_readouts",
        "instruments/test_objective_geometry.py::test_a_scalar_head_is_refused",
    ),
}
