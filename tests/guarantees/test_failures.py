"""The operator's table of failures in docs/operating.md: every row has a test that proves it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROOFS = {
    # At the public listener
    "A signature is missing, wrong, or": "tests/receiver/test_hostile_requests.py::"
    "test_all_401_responses_are_alike",
    "This host's clock is wrong": "tests/receiver/test_tolerance.py::"
    "test_the_whole_service_has_the_edges_of_the_tolerance",
    "An event comes again within": "tests/receiver/test_hostile_requests.py::"
    "test_a_repeated_request_is_acknowledged_and_not_delivered_again",
    "A known id comes with another body": "tests/receiver/test_hostile_requests.py::"
    "test_a_known_id_with_another_body_is_a_duplicate_and_the_first_stays",
    "A good signature on a body that": "tests/receiver/test_hostile_requests.py::"
    "test_a_verified_body_without_an_event_is_kept_once_and_acknowledged",
    "A body over `max_body`": "tests/receiver/test_hostile_http.py::"
    "test_a_body_that_stalls_is_given_up",
    "A request that is not HTTP": "tests/receiver/test_hostile_http.py::"
    "test_a_head_without_end_is_given_up_before_it_costs",
    "More events come than the relay": "tests/delivery/test_backpressure.py::"
    "test_credit_starts_sends_beside_those_in_flight",
    # At a sink
    "A destination is down": "tests/delivery/test_dispatcher.py::"
    "test_a_sink_that_keeps_failing_is_probed_and_the_others_keep_their_attempts",
    "It stays down for longer": "tests/delivery/test_dispatcher.py::"
    "test_an_event_is_given_up_after_its_time",
    "It asks for a pause": "tests/delivery/test_dispatcher.py::"
    "test_retry_after_pauses_the_whole_sink",
    "It answers 401": "tests/delivery/test_dispatcher.py::"
    "test_a_parked_sink_keeps_its_backlog_and_recovers_by_a_probe",
    "The token endpoint": "tests/sinks/http/test_tokens.py::"
    "test_a_token_endpoint_that_fails_kills_no_event_and_is_not_called_the_destination",
    "The [proxy]": "tests/core/test_retry.py::"
    "test_an_event_that_was_never_sent_is_kept_whatever_its_age",
    "It refuses one event": "tests/delivery/test_dispatcher.py::"
    "test_a_refused_event_is_a_dead_letter_at_once",
    "It refuses everything": "tests/delivery/test_refusals.py::"
    "test_a_destination_that_refuses_everything_costs_four_events",
    "`when` fails on an event": "tests/receiver/test_app.py::"
    "test_a_rule_that_fails_on_an_event_makes_a_dead_letter_of_its_delivery",
    "A sink was removed from the config": "tests/app/test_reload.py::"
    "test_the_backlog_of_a_removed_sink_is_kept_for_its_return",
    # At the store
    "Less than `min_free` is left": "tests/guarantees/test_full_disk.py::"
    "test_a_full_disk_is_answered_503_until_there_is_room",
    "A commit takes longer": "tests/guarantees/test_store_faults.py::"
    "test_nothing_is_acknowledged_before_the_sync",
    "The disk fails": "tests/guarantees/test_store_faults.py::"
    "test_after_a_failed_write_or_sync_nothing_is_acknowledged",
    "A second relay on the same file": "tests/guarantees/test_drain.py::"
    "test_a_second_relay_on_the_store_is_refused",
    "One of several relays on a": "tests/guarantees/cluster/test_relays.py::"
    "test_a_killed_relay_loses_nothing_and_its_sinks_are_taken_over",
    "The database cannot be reached": "tests/cli/test_postgres_start.py::"
    "test_a_failed_start_is_one_line_and_an_exit_code",
    "The database refuses the relay": "tests/cli/test_postgres_start.py::"
    "test_the_check_of_a_connection_says_what_a_start_would_do",
    "The database goes away": "tests/store/postgres/test_failures.py::"
    "test_a_server_that_hangs_is_answered_503_and_nothing_is_lost",
    "The server runs with": "tests/store/postgres/test_start.py::"
    "test_settings_with_which_a_server_forgets_are_warned_of",
    "The schema is in a database": "tests/store/postgres/test_encodings.py::"
    "test_an_existing_schema_opens_with_a_warning_and_delivers",
    "The database's password was": "tests/app/test_database_access.py::"
    "test_a_rotated_password_is_taken_while_nothing_can_connect_by_the_old_one",
    "`store.path` is where no file": "tests/cli/test_check_cases.py::"
    "test_a_start_warns_of_a_mistake_and_a_path_that_keeps_no_files_ends_it_with_78",
    "No relay has used the store": "tests/app/test_startup.py::"
    "test_a_store_that_no_relay_has_used_before_is_logged_as_new",
    "Python's SQLite is older": "tests/app/test_store_report.py::"
    "test_only_an_sqlite_with_the_wal_reset_bug_causes_a_warning",
    # To the process
    "The process is killed": "tests/guarantees/test_kills.py::"
    "test_kill_9_loses_nothing_and_repeats_only_what_was_in_flight",
    "A stop signal during": "tests/guarantees/test_stop_at_start.py::"
    "test_it_ends_while_it_waits_for_a_database",
    "The log has no reader": "tests/guarantees/test_log_reader.py::"
    "test_it_acknowledges_answers_and_stops",
    "SIGTERM or SIGINT": "tests/guarantees/test_drain.py::"
    "test_a_request_in_flight_gets_its_answer_while_the_public_side_is_closed",
    "The loops of a template": "tests/outbound/test_template.py::"
    "test_loops_that_run_too_often_fail_and_say_the_limit",
    "An event is larger than 64": "tests/receiver/test_large_bodies.py::"
    "test_only_a_large_request_leaves_the_event_loop",
    "A newer relay migrates": "tests/app/test_newer_schema.py::"
    "test_a_relay_ends_in_order_when_a_newer_one_migrates_the_schema_beyond_it",
    "The config has faults": "tests/guarantees/test_drain.py::"
    "test_a_bad_config_is_refused_with_every_fault",
    "The config has a mistake": "tests/app/test_reload.py::"
    "test_a_mistake_of_a_config_that_could_run_is_logged_and_used",
    "A request offers to upgrade": "tests/receiver/test_hostile_heads.py::"
    "test_an_offer_to_upgrade_is_ignored_and_its_event_is_taken",
    "A request has more than 100": "tests/receiver/test_hostile_heads.py::"
    "test_a_hundred_headers_are_taken_and_one_more_is_refused",
    "Requests that are not verified": "tests/server/test_memory_limit.py::"
    "test_bodies_that_never_come_to_an_end_give_way_to_signed_ones",
    "A request with `Expect": "tests/receiver/test_early_responses.py::"
    "test_an_early_response_to_a_sender_that_waits_closes_the_connection",
    "More connections than the relay": "tests/server/test_connection_limit.py::"
    "test_idle_connections_beyond_all_files_silence_neither_listener",
    "An event makes a template": "tests/sinks/test_destinations.py::"
    "test_a_name_that_the_broker_reserves_is_refused_without_repeating_it",
    "A value of an event cannot": "tests/sinks/http/test_request.py::"
    "test_an_event_that_would_fold_the_path_is_refused_and_not_sent",
    "A destination answers without the": "tests/outbound/http/test_surplus_responses.py::"
    "test_no_sink_takes_a_second_answer_for_that_to_the_next_event",
    "A replay is cancelled": "tests/admin/test_selecting.py::"
    "test_no_delivery_of_a_cancelled_replay_starts",
    "The relay lives but can accept nothing": "tests/app/test_startup.py::"
    "test_a_stall_of_the_running_process_is_an_absence",
    "The relay is away for": "tests/app/test_startup.py::"
    "test_a_short_restart_does_not_hide_the_loss_of_the_absence_before_it",
    "The process hangs, or its": "tests/app/test_watchdog.py::"
    "test_a_hanging_process_ends_itself_and_a_working_one_does_not",
    "The config on disk is": "tests/cli/test_target.py::"
    "test_a_command_with_url_and_token_ignores_broken_toml",
    "A command is of another": "tests/cli/test_target.py::"
    "test_a_relay_of_another_version_is_reported_with_both_versions",
    "`relay.db` or its `-wal` is": "tests/guarantees/test_log_faults.py::"
    "test_nothing_is_acknowledged_once_the_log_was_damaged_under_load",
    "A stored body is damaged": "tests/delivery/test_damaged_bodies.py::"
    "test_a_damaged_body_becomes_a_dead_letter_and_its_neighbours_are_delivered",
    "The store has a hard": "tests/guarantees/test_second_names.py::"
    "test_a_hard_link_to_the_store_of_a_running_relay_is_refused",
    "Any restart": "tests/app/test_totals.py::"
    "test_kill_9_loses_no_scraped_count_and_no_acknowledged_event",
    "A sink has `enrich`, and": "tests/app/test_enrichment.py::"
    "test_an_api_that_is_down_stops_nothing",
    "It rejects some events (403": "tests/delivery/test_poison.py::"
    "test_good_events_among_and_behind_bad_ones_are_delivered_soon",
    "This host's clock is set": "tests/delivery/test_due.py::"
    "test_a_clock_set_back_by_a_day_does_not_strand_retries",
}
"""By the beginning of a row's first cell."""


def _rows() -> list[str]:
    text = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    section = text.partition("\n## What happens when\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)
    return [cell for cell in cells if cell != "What happens"]


@pytest.mark.parametrize("row", _rows())
def test_every_row_of_the_failure_table_has_one_proof(row: str) -> None:
    assert len([beginning for beginning in PROOFS if row.startswith(beginning)]) == 1


@pytest.mark.parametrize(("beginning", "proof"), PROOFS.items(), ids=PROOFS.values())
def test_every_proof_is_a_test_and_has_its_row(beginning: str, proof: str) -> None:
    assert [row for row in _rows() if row.startswith(beginning)]
    file, _, name = proof.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, functions)}
