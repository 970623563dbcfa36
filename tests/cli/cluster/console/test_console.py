"""The console in a real browser, before a real API server, by users with the roles that are shipped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from compaction.api.names import (
    ANNOTATION_APPROVE,
    ANNOTATION_APPROVED_BY,
    ANNOTATION_PREVIEW,
    ANNOTATION_RUN_NOW,
)
from compaction.api.text.printing import mark_of
from support.clocks import eventually
from support.cluster.by_kubectl import Cluster, User, ago, make, write_status
from support.cluster.explained import condition
from support.cluster.manifests import job_object, policy_object
from support.cluster.orders import catalog_object

pytestmark = pytest.mark.apiserver

PLAN = "497a31287346bc19"
EVIL = "<script>window.bad = 1</script><img src=x onerror='window.bad = 1'>"
"""Text that anybody may have written: names of directories, messages of stores, reasons of a hold."""
OF_PLAN = {
    "hash": PLAN,
    "jobs": 3,
    "costBytes": 5 << 20,
    "gainBytes": 90 << 20,
    "createdAt": ago(60),
    "waitingSince": ago(60),
    "approval": "Pending",
    "work": [{"job": "logs-1", "target": f"/data/{EVIL}", "groups": 2, "costBytes": 5 << 20, "gainBytes": 90 << 20}],
    "leftOut": [{"reason": "DenseEnough", "count": 4, "example": "/data/a/1.segment"}],
}


BEGINS = {"begins": {"reason": "Due"}}
PREVIEWED = {
    "handledAt": ago(0),
    "outcome": "Accepted",
    "reason": "Previewed",
    "message": "",
    "changes": [{"field": "spec.trigger.interval", "before": "1m", "after": "7m"}],
    "changed": 1,
    "inForce": {"plan": {"jobs": 3}, **BEGINS},
    "proposed": {"plan": {"jobs": 12}, **BEGINS},
}
FIRST_ROW = """async () => {
  const { follow } = await import("/static/console.js");
  return new Promise((resolve) => {
    const stop = follow("/api/stream/fleet", (change) => (stop(), resolve(change.rows[0])), () => {});
  });
}"""


def scheduled(message: str = "nothing is due") -> dict[str, Any]:
    return {
        "observedGeneration": 1,
        "store": "SegmentLogs",
        "conditions": [condition("Ready", "Scheduled", message=message)],
        "debt": {"bytes": 1 << 20, "sources": 3, "targets": 1},
        "lastSenseTime": ago(5),
    }


def waiting() -> dict[str, Any]:
    ready = condition("Ready", "ApprovalPending", message=EVIL)
    since = {"reason": "ApprovalPending", "since": ago(60)}
    return scheduled() | {"conditions": [ready], "plan": OF_PLAN, "waiting": since}


@pytest.fixture
def fleet(cluster: Cluster) -> Cluster:
    """A policy that waits for approval, one at rest, a job that is parked, and a catalog."""
    make(cluster, policy_object("logs", approval="Manual"), waiting())
    make(cluster, policy_object("others"), scheduled())
    attempt = {"token": 1, "worker": "w-1", "startedAt": ago(90), "endedAt": ago(60), "outcome": "Failed"}
    faulty = {
        "state": "Faulty",
        "attempts": [attempt | {"charged": True, "reason": "SourceCorrupt", "message": EVIL}],
        "conditions": [condition("Ready", "SourceCorrupt", status="False", message=EVIL)],
        "finishedAt": ago(60),
    }
    make(cluster, job_object("logs-1"), faulty)
    pinned = {
        "earliestVersion": 3,
        "latestVersion": 40,
        "conditions": [condition("Ready", "Transaction")],
        "requiredTime": {"value": 1, "time": ago(7200), "reason": "Transaction", "participant": "orders-1"},
    }
    make(cluster, catalog_object("orders"), pinned)
    return cluster


def opened(browser: Browser, address: str, **more: Any) -> tuple[Page, list[str]]:
    """A page that is signed in, and what its console says: with our headers a violation of the policy is an error."""
    page = browser.new_page(**more)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    expect(page.locator("[data-live=live]")).to_be_visible()
    return page, said


def annotations_of(cluster: Cluster, name: str) -> dict[str, str]:
    found: dict[str, str] = cluster.policy(name)["metadata"].get("annotations", {})
    return found


def test_editor_follows_the_fleet_and_approves(
    browser: Browser, console: Callable[[User], str], fleet: Cluster, editor: User
) -> None:
    page, said = opened(browser, console(editor))
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("logs")  # it needs a person, so it comes first
    expect(rows.nth(0)).to_contain_text("ApprovalPending")

    # What changes in the cluster changes on the page, without a reload.
    write_status(
        fleet, "cpol/others", {"conditions": [condition("Ready", "StoreUnreadable", status="False", message="no")]}
    )
    expect(page.locator("tr", has_text="others").locator(".badge")).to_have_text("StoreUnreadable")
    make(fleet, policy_object("third"), scheduled())
    expect(rows).to_have_count(4)
    fleet.delete("cpol/third")
    expect(rows).to_have_count(3)

    # By keys: to the filter, to the row, to its page.
    page.keyboard.press("/")
    page.keyboard.type("approvalpending")
    expect(rows).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/policy/[^/]+/logs$"))
    expect(page.get_by_label("Plan")).to_contain_text(f"/data/{EVIL}")

    page.get_by_role("button", name="Approve").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.locator(".said")).to_contain_text(f"plan {PLAN} approved")
    found = annotations_of(fleet, "logs")
    assert found[ANNOTATION_APPROVE] == PLAN
    assert found[ANNOTATION_APPROVED_BY] == f"{PLAN}/compaction-editor-{fleet.namespace}"
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".said")).to_contain_text("run-now requested")
    assert annotations_of(fleet, "logs")[ANNOTATION_RUN_NOW]
    # A preview: the spec goes to the operator, here played by the test, and its answer comes into the page.
    page.get_by_text("Propose another spec").click()
    area = page.get_by_label("Spec, as YAML")
    area.fill("trigger: {}\n" + area.input_value())
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".said")).to_contain_text("key 'trigger' occurs twice")
    area.fill(area.input_value().replace("trigger: {}\n", "").replace("interval: 1m", "interval: 7m"))
    page.get_by_role("button", name="Preview").click()
    value = eventually(lambda: annotations_of(fleet, "logs").get(ANNOTATION_PREVIEW), "the proposed spec")
    assert json.loads(value)["spec"]["trigger"]["interval"] == "7m"
    write_status(fleet, "cpol/logs", {"lastHandledPreview": mark_of(value), "preview": PREVIEWED})
    expect(page.locator(".said")).to_contain_text("logs: previewed")
    expect(page.get_by_label("Preview").locator("tr", has_text="spec.trigger.interval")).to_contain_text("7m")
    expect(page.get_by_label("Preview").locator("tr", has_text="Jobs")).to_contain_text("12")
    page.get_by_role("button", name="Suspend").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert fleet.policy()["spec"]["suspend"] is True

    assert page.evaluate("window.bad") is None
    assert [text for text in said if "400 (Bad Request)" not in text] == []
    page.close()


def test_viewer_reads_all_pages_in_both_sizes_and_has_no_button(
    browser: Browser, console: Callable[[User], str], fleet: Cluster, user: Callable[[str], User]
) -> None:
    address = console(user("compaction-viewer"))
    page, said = opened(browser, address, viewport={"width": 390, "height": 844}, color_scheme="dark")
    base, space = address.split("/#")[0], fleet.namespace
    pages = {
        "/": "ApprovalPending",
        f"/policy/{space}/logs": "DenseEnough",
        f"/job/{space}/logs-1": "SourceCorrupt",
        f"/catalog/{space}/orders": "versions 3 to 40; 36 are kept beyond the two that always stay",
        "/failures": "SourceCorrupt",
    }
    for path, text in pages.items():
        page.goto(base + path)
        expect(page.locator("main")).to_contain_text(text)
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        expect(page.locator("[data-act]")).to_have_count(0)
    # Who presses a button that is not there is refused by the API server, in its own words.
    body = {"act": "run-now", "kind": "policy", "namespace": space, "name": "logs"}
    answer = page.evaluate(
        "body => import('/static/console.js').then(c => c.send('/api/act', body)).catch(String)", body
    )
    assert 'cannot patch resource "compactionpolicies"' in answer
    assert ANNOTATION_RUN_NOW not in annotations_of(fleet, "logs")
    assert page.evaluate("window.bad") is None
    assert [text for text in said if "403" not in text] == []
    page.close()


def test_name_is_text_and_a_lost_connection_is_said(
    browser: Browser, console: Callable[[User], str], fleet: Cluster, editor: User
) -> None:
    """No API server takes such a name; one that did would change nothing."""
    address = console(editor)
    page, said = opened(browser, address)
    row = page.evaluate(FIRST_ROW)
    change = {"rows": [row | {"name": "<script>", "key": "1"}], "gone": [], "totals": {}, "problems": [], "first": True}

    def answer(route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(change)}\n\n")

    page.route("**/api/stream/fleet", answer)
    page.reload()
    expect(page.locator("tbody a")).to_have_text("<script>")
    expect(page.locator("[data-live=lost]")).to_be_visible()  # that stream has ended
    page.unroute("**/api/stream/fleet")
    expect(page.locator("[data-live=live]")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(3)
    assert said == []
    page.close()
