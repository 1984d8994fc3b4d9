"use strict";
// Keeps an open page live, and spares it reloads. Every view, filter and action works without it.
//
// The stream says which topics changed; the page then fetches its own URL and morphs the parts that
// may change: `#main`, and every element with `data-live` and an id. Documents are parsed by
// XMLHttpRequest, which is no Trusted Types sink and runs no script.
(() => {
  const REFRESH_MS = 250; // shortest time between the begins of two refreshes
  const REFRESH_SHARE = 0.1; // of the time, at most: a busy relay has better things to do
  const REFRESH_MAX_MS = 5000; // longest wait because of that
  const IDLE_REFRESH_MS = 60_000; // some findings come by time alone
  const LATE_MS = 10_000; // of a refresh, after which what is shown is said to be old
  const SILENCE_MS = 40_000; // of a stream, which says something every 15 s
  const RETRY_MS = 3000; // a proxy's error closes an EventSource for good
  const REQUEST_MS = 60_000;
  const WARNING_MS = 8000;
  const SECOND_KEY_MS = 1500; // between `g` and the letter of a view
  const TYPING = "input:not([type=checkbox], [type=radio]), select, textarea";
  const FIELDS = "input:not([type=hidden]), select, textarea";

  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);

  // ---- Morph: make a part equal to a fresh one, and keep what belongs to the person. ----

  function isInUse(list) {
    const selection = getSelection();
    return (
      list.matches(":hover, :focus-within") ||
      list.querySelector("input:checked") !== null ||
      (!selection.isCollapsed && selection.containsNode(list, true))
    );
  }

  /**
   * Return whether new rows would move others under a finger, be it in a list further down;
   * `data-hold="always"` is set by the server.
   */
  const isHeld = (list) =>
    list.dataset.hold === "always" ||
    list.getBoundingClientRect().top < 0 ||
    all("[data-hold]").some(isInUse);

  /** Return the value that the server gave a field. */
  function givenValue(field) {
    if (field.type === "checkbox" || field.type === "radio") return field.defaultChecked;
    if (field.localName !== "select") return field.defaultValue;
    return (all("option", field).find((option) => option.defaultSelected) ?? field.options[0])?.value;
  }

  /** Return the name of the property that a person changes. */
  const changing = (field) => (/^(checkbox|radio)$/.test(field.type) ? "checked" : "value");

  const isEdited = (field) => field[changing(field)] !== givenValue(field);

  function morph(old, fresh, held) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    // The script renders these itself.
    if (old.matches("[data-held], [data-held-said], [data-live-state], [data-standing]")) return;
    if (old.localName === "time" && old.dateTime && old.dateTime === fresh.dateTime) return;
    if (!old.matches(FIELDS) || old.type === "file") {
      morphAttributes(old, fresh);
      morphChildren(old, fresh, held);
      return;
    }
    const property = changing(old);
    const now = old[property];
    const isKept = isEdited(old);
    morphAttributes(old, fresh);
    morphChildren(old, fresh, held);
    const wanted = isKept ? now : givenValue(old);
    if (old[property] !== wanted && wanted !== undefined) old[property] = wanted;
  }

  function morphAttributes(old, fresh) {
    const kept = (fresh.dataset.keep ?? "").split(" ");
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !kept.includes(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value && !kept.includes(name)) old.setAttribute(name, value);
    }
  }

  /** Return a node's id; a form's own property is its field of that name, where it has one. */
  const idOf = (node) => node?.getAttribute?.("id") ?? "";

  const isBlank = (node) => node?.nodeType === Node.TEXT_NODE && !node.nodeValue.trim();

  function morphChildren(parent, fresh, held) {
    const own = new Map([...parent.children].filter(idOf).map((each) => [idOf(each), each]));
    if (held.has(parent)) {
      if (held.get(parent)) morphRows(parent, fresh, own, held);
      return;
    }
    const ids = new Set([...fresh.children].map(idOf));
    const stays = (node) => held.has(node) && !ids.has(idOf(node));
    for (const child of own.values()) if (!ids.has(idOf(child)) && !stays(child)) child.remove();
    const unless = (node) => (node && stays(node) ? unless(node.nextSibling) : node);
    let next = unless(parent.firstChild);
    for (const wanted of [...fresh.childNodes]) {
      // A part that has gone leaves two blanks where there is one, and all that follows would be new.
      while (wanted.nodeType === Node.ELEMENT_NODE && isBlank(next)) {
        const gone = next;
        next = unless(next.nextSibling);
        gone.remove();
      }
      const match = idOf(wanted) ? own.get(idOf(wanted)) : idOf(next) ? null : next;
      if (match?.nodeName !== wanted.nodeName) {
        parent.insertBefore(wanted, next);
        continue;
      }
      if (match === next) next = unless(next.nextSibling);
      else if (parent.moveBefore) parent.moveBefore(match, next);
      else parent.insertBefore(match, next);
      morph(match, wanted, held);
    }
    while (next) {
      const gone = next;
      next = unless(next.nextSibling);
      gone.remove();
    }
    if (parent.matches("[data-hold]")) showHeld(parent, 0);
  }

  /** Change the rows that are there, mark those that have gone, and count those that wait. */
  function morphRows(list, fresh, own, held) {
    const rows = new Map([...fresh.children].map((row) => [row.id, row]));
    for (const [id, row] of own) {
      if (rows.has(id)) morph(row, rows.get(id), held);
      else markGone(row);
    }
    // An older page has no place for those that came since: they are on the first.
    const more = list.dataset.hold === "always" ? 0 : [...rows.keys()].filter((id) => !own.has(id)).length;
    showHeld(list, more + Number(fresh.dataset.newer ?? 0), "over" in fresh.dataset);
  }

  /** Say of a row that what it shows is not so any more; morphing takes it back. */
  function markGone(row) {
    if ("gone" in row.dataset) return;
    row.dataset.gone = "";
    const words = document.createElement("span");
    words.className = "gone";
    words.textContent = "not in this list any more";
    (row.cells?.[0] ?? row).append(words);
  }

  const ABOUT_MIN = 100; // fewer are counted one by one
  const ABOUT_MAX = 10_000;
  const written = (count) => count.toLocaleString("en-US");

  /** Return a number as exact as it is known: `57`, `about 240`, `over 10,000`. */
  function about(count, isMore) {
    if (isMore || count > ABOUT_MAX) return `over ${written(Math.min(count, ABOUT_MAX))}`;
    if (count < ABOUT_MIN) return written(count);
    const size = 10 ** (String(count).length - 2);
    return `about ${written(Math.round(count / size) * size)}`;
  }

  const sentence = (text) => text[0].toUpperCase() + text.slice(1);

  function showHeld(list, count, isMore = false) {
    const button = one(`[data-held="${list.id}"]`);
    if (!button) return;
    const words = button.dataset.words ?? "new";
    const text = sentence(`${about(count, isMore)} ${words}: show them`);
    if (button.hidden !== !count) speak(count ? "New rows have come." : "");
    button.hidden = !count;
    if (button.textContent !== text) button.textContent = text;
  }

  /** Have a screen reader say something once, not with every change of a number. */
  function speak(text) {
    const place = one("[data-held-said]");
    if (place) place.textContent = text;
  }

  /**
   * Show a fetched document. `held` are lists that take no new rows, each with whether the document
   * has its rows, and a notice that stays.
   */
  function show(fresh, held) {
    const active = document.activeElement;
    const parts = [one("#main"), ...all("[data-live][id]").filter((each) => !each.closest("#main"))];
    for (const part of parts) {
      const other = fresh.getElementById(part.id);
      if (other) morph(part, other, held);
    }
    if (document.activeElement !== active && active?.isConnected) active.focus({ preventScroll: true });
    document.title = fresh.title;
    setClock(fresh.body);
    readAnew(fresh.body);
    decorate();
  }

  // ---- Requests ----

  let generation = 0; // of what is shown: an answer to an older request is dropped
  let going = 0; // requests of the person under way

  function request(url, { isByPerson = false, body, held = [] } = {}) {
    return new Promise((resolve) => {
      const request = new XMLHttpRequest();
      request.open(body ? "POST" : "GET", url);
      request.responseType = "document";
      request.timeout = REQUEST_MS;
      // Only what a person does keeps a session alive.
      request.setRequestHeader("Relay-Fragment", isByPerson ? "person" : "1");
      if (held.length) {
        const parts = held.map((list) => `${list.id}=${list.dataset.range ?? ""}`);
        request.setRequestHeader("Relay-Held", parts.join(","));
      }
      request.onloadend = () => resolve(request);
      request.send(body);
    });
  }

  /** Show an answer; return whether it was a page that can be shown. */
  function receive(answer, held = new Map()) {
    const isPage = answer.status !== 401 && Boolean(answer.response?.getElementById("main"));
    if (isPage) show(answer.response, held);
    else if (answer.status === 401) stop();
    return isPage;
  }

  /** Go to another state of the page, as a browser would without script. */
  async function go(url, body) {
    const mine = ++generation;
    going += 1;
    const answer = await request(url, { isByPerson: true, body });
    going -= 1;
    if (mine !== generation) return;
    if (receive(answer)) {
      const isElsewhere = answer.responseURL !== location.href.split("#")[0];
      if (isElsewhere) history.pushState(null, "", answer.responseURL);
    } else if (answer.status !== 401) {
      if (body) warn(answer.status ? `Failed with status ${answer.status}` : "Not sent: no answer");
      else location.assign(url);
    }
    if (isWanted) refresh();
  }

  // ---- Live updates ----

  const topics = () => all("#main[data-topics], [data-live]").flatMap((each) =>
    (each.dataset.topics ?? each.dataset.live).split(" "));

  let source = null;
  let relay = null; // start time of the one that answers
  let link = "reconnecting"; // to the relay: live, reconnecting or stopped
  let words = ""; // for the link
  let [pausedMs, lostMs, shownMs] = [0, 0, 0]; // since when, by the server's clock; 0 if not
  let failure = 0; // status of the last refresh; 0 without any answer
  let heardAt = 0;
  let [accepted, came] = [0, 0]; // events: the relay's count, and those of a pause
  let [isWanted, isRunning, timer, nextAt] = [false, false, 0, -Infinity];

  /** Fetch the page again, soon; many calls are one request. */
  function refresh() {
    isWanted = true;
    if (isRunning || timer || going || pausedMs || link !== "live" || document.hidden) return;
    timer = setTimeout(fetchPage, Math.max(0, nextAt - performance.now()));
  }

  let anew = 0; // timer

  /** Fetch the page again once the server reads anew what it took from an older, slow read. */
  function readAnew(body) {
    clearTimeout(anew);
    if (body.dataset.againMs) anew = setTimeout(refresh, Number(body.dataset.againMs));
  }

  let holding = []; // lists that the last refresh left in their places

  const heldNow = () => all("[data-hold]").filter(isHeld);

  async function fetchPage() {
    timer = 0;
    if (going || pausedMs) return; // it refreshes when it is done
    [isWanted, isRunning] = [false, true];
    const [mine, begunAt] = [generation, performance.now()];
    const before = heldNow();
    const held = before.filter((list) => list.dataset.hold !== "always");
    const late = setTimeout(lose, LATE_MS);
    const answer = await request(location.href, { held });
    clearTimeout(late);
    isRunning = false;
    const tookMs = performance.now() - begunAt;
    nextAt = begunAt + Math.max(REFRESH_MS, Math.min(tookMs / REFRESH_SHARE, tookMs + REFRESH_MAX_MS));
    const isFailed = !answer.status || answer.status >= 500; // the last good page stays
    if (isFailed) lose(answer.status);
    else if (mine === generation && !pausedMs) {
      holding = [...new Set([...before, ...heldNow()])];
      // The document has no rows of a list that came into use meanwhile: it waits for the next one.
      const kept = holding.map((list) => [list, before.includes(list)]);
      receive(answer, new Map([...kept, ...all("#notice").map((notice) => [notice, false])]));
      if (holding.length > before.length) isWanted = true;
    }
    if (isFailed) setTimeout(refresh, RETRY_MS);
    else if (isWanted || mine !== generation) refresh();
  }

  /** Show new rows of lists that are not in use any more. */
  function release() {
    if (holding.length && !heldNow().length) {
      holding = [];
      refresh();
    }
  }

  function tick() {
    decorate();
    release();
    if (link === "live" && source && performance.now() - heardAt > SILENCE_MS) {
      lose();
      connect();
    }
  }

  const TITLES = { paused: "Go on", stopped: "Log in again" }; // of the button

  /** Say how the page stands to the relay: in the button, and below the page unless it is live. */
  function say() {
    if (!words && !lostMs) return; // there was no stream yet
    const state = link === "stopped" ? link : pausedMs ? "paused" : lostMs ? "reconnecting" : "live";
    document.body.dataset.state = state;
    sayBelow(state);
    const place = one("[data-live-state]");
    if (!place) return;
    const lost = `${failure ? "Failing" : "Reconnecting"} since ${minute(lostMs)}`;
    const text = { paused: "Paused", reconnecting: lost }[state] ?? words;
    if (place.textContent !== text) place.textContent = text;
    place.title = TITLES[state] ?? "Pause";
    place.hidden = false;
  }

  const STANDING = {
    paused: () => [
      `Live is paused since ${clock(pausedMs)}.`,
      `Nothing above changes; ${events()} come to this relay since.`,
      "Go on",
    ],
    reconnecting: () => {
      const does = failure ? `answers with an error (${failure})` : "does not answer";
      return [`The relay ${does} since ${clock(lostMs)}:`, `what you see is of ${clock(shownMs)}.`];
    },
    stopped: () => ["Your login has ended:", `what you see is of ${clock(shownMs)}.`, "Log in"],
  };

  const events = () =>
    came ? `${about(came)} ${came === 1 ? "event has" : "events have"}` : "no event has";

  function sayBelow(state) {
    const place = one("[data-standing]");
    if (!place) return;
    const said = STANDING[state]?.();
    place.hidden = !said;
    if (!said) return;
    const [first, rest, action] = said;
    const [head, tail] = place.children;
    if (head.textContent !== first) head.textContent = first;
    if (tail.textContent !== rest) tail.textContent = rest;
    let button = place.querySelector("button");
    if (action && !button) {
      button = document.createElement("button");
      [button.className, button.type, button.dataset.toggle] = ["b", "button", ""];
      place.append(button);
    } else if (!action) button?.remove();
    if (action && button.textContent !== action) button.textContent = action;
  }

  /** Say something for a moment. */
  function warn(text) {
    const place = one("[data-live-state]");
    if (place) place.textContent = text;
    setTimeout(say, WARNING_MS);
  }

  const serverMs = () => Date.now() + ahead;
  const minute = (ms) => `${new Date(ms).toISOString().slice(11, 16)} UTC`;
  const clock = (ms) => `${new Date(ms).toISOString().slice(11, 19)} UTC`;

  /** The relay does not answer, or with an error only. */
  function lose(status = 0) {
    failure = status;
    lostMs ||= serverMs();
    say();
  }

  function connect() {
    source?.close();
    if (document.hidden || !document.body.dataset.liveUrl) return;
    heardAt = performance.now();
    const opened = (source = new EventSource(document.body.dataset.liveUrl));
    opened.onmessage = ({ data }) => hear(JSON.parse(data));
    opened.onerror = () => {
      if (opened !== source) return;
      link = "reconnecting";
      lose();
      if (opened.readyState === EventSource.CLOSED) reconnect();
    };
  }

  /** Find out why the stream was refused: a login has ended, or a proxy waits for the relay. */
  async function reconnect() {
    const answer = await request(location.href);
    if (answer.status === 401) stop();
    else if (link === "stopped") connect();
    else if (link === "reconnecting") setTimeout(() => link === "reconnecting" && connect(), RETRY_MS);
  }

  function hear(message) {
    heardAt = performance.now();
    if (message.started_ms) {
      const isOther = relay !== null && relay !== message.started_ms;
      if (isOther) accepted = 0; // it counts anew
      relay = message.started_ms;
      [link, lostMs, failure] = ["live", 0, 0];
      words = isOther ? `Live, relay restarted ${minute(relay)}` : "Live";
      refresh();
    } else if (going || topics().some((each) => message.topics.includes(each))) {
      refresh(); // the view to come may have other topics than the one that is shown
    }
    if (pausedMs) came += message.accepted - accepted;
    accepted = message.accepted;
    say();
  }

  function stop() {
    source?.close();
    [link, words] = ["stopped", "Stopped: log in again"];
    say();
  }

  /** Go to the login; in another tab, where it would take away what somebody has typed. */
  function logIn() {
    if (all(`form :is(${FIELDS})`).some(isEdited)) window.open(location.href, "_blank", "noopener");
    else location.reload();
  }

  function toggle() {
    if (link === "stopped") logIn();
    else if (pausedMs) {
      pausedMs = 0;
      refresh();
    } else if (words) [pausedMs, came] = [serverMs(), 0];
    decorate();
    say();
  }

  function onVisibility() {
    if (document.hidden) source?.close();
    else if (link === "stopped") reconnect();
    else connect();
  }

  // ---- Times by the server's clock, and what is of use with script only ----

  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const DAY_MS = 86_400_000;
  const UNITS = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  let ahead = 0; // the server's clock, in milliseconds

  function setClock(body) {
    if (!body.dataset.now) return;
    shownMs = Number(body.dataset.now);
    ahead = shownMs - Date.now();
    if (lostMs && link === "live") [lostMs, failure, words] = [0, 0, "Live"];
    say();
  }

  function relative(ms) {
    const seconds = Math.floor(Math.abs(ms) / 1000);
    const unit = UNITS.find(([size]) => seconds >= size);
    if (!unit) return "now";
    const text = `${Math.floor(seconds / unit[0])} ${unit[1]}`;
    return ms < 0 ? `in ${text}` : `${text} ago`;
  }

  const still = (ms, ago) =>
    Math.abs(ago) < DAY_MS ? clock(ms) : new Date(ms).toISOString().slice(0, 10);

  function decorate() {
    for (const button of all("[data-copy][hidden]")) button.hidden = false;
    for (const time of all("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      if ("relative" in time.dataset) {
        // An age that goes on would look fresh.
        const isStill = pausedMs || link === "stopped";
        const ago = serverMs() - at;
        const text = isStill ? still(at.getTime(), ago) : relative(ago);
        if (time.textContent !== text) time.textContent = text;
      }
      const [date, utc] = at.toISOString().slice(0, -1).split("T");
      const title = `${date} ${utc} UTC, ${at.toLocaleString("sv-SE")} here (${zone})`;
      if (time.title !== title) time.title = title;
    }
  }

  // ---- What a person does ----

  /** Send a form as the browser would, but show the answer in place. */
  async function submit(form, submitter) {
    const action = submitter?.getAttribute("formaction") ?? form.getAttribute("action");
    const url = new URL(action || location.href, document.baseURI);
    const values = new URLSearchParams(new FormData(form, submitter));
    if (form.matches("[data-filter]")) {
      url.search = new URLSearchParams([...values].filter(([, value]) => value));
      await go(url.href);
      return;
    }
    const buttons = [...form.elements].filter((each) => each.type === "submit" && !each.disabled);
    for (const button of buttons) button.disabled = true;
    form.setAttribute("aria-busy", "true");
    await go(url.href, values);
    form.removeAttribute("aria-busy");
    for (const button of buttons) button.disabled = false;
    const next = submitter?.isConnected ? submitter : one("#main");
    next.focus({ preventScroll: true });
  }

  /** Send a form as the browser does, but not into a login, which would take away its texts. */
  async function leave(form) {
    const answer = await request(location.href, { isByPerson: true });
    if (answer.status === 401) stop();
    else if (!answer.status) warn("Not sent: no answer");
    else {
      // After a login in another tab the one of this page is not valid any more.
      const token = answer.response?.querySelector("[name=form_token]");
      for (const field of token ? all("[name=form_token]") : []) field.value = token.value;
      form.submit();
    }
  }

  async function copy(button) {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // There is no clipboard API on plain http, except on loopback.
      const field = document.createElement("textarea");
      field.value = text;
      button.after(field);
      field.select();
      document.execCommand("copy");
      field.remove();
      button.focus();
    }
    button.dataset.copied = "";
    setTimeout(() => delete button.dataset.copied, 2000);
  }

  function onClick(event) {
    const target = event.target.closest("[data-copy], [data-held], [data-live-state], [data-toggle], [data-keys-open]");
    if (!target) return;
    if ("copy" in target.dataset) copy(target);
    else if ("held" in target.dataset) go(location.href);
    else if ("liveState" in target.dataset || "toggle" in target.dataset) toggle();
    else one("#keys")?.showModal();
  }

  // ---- Keys; they can be switched off (WCAG 2.1.4) ----

  const KEYS_OFF = "relay.keys-off";
  let viewUntil = 0; // until then a letter names a view

  function moveRow(step) {
    const rows = all("[data-row]");
    const at = rows.indexOf(document.activeElement.closest("[data-row]"));
    const row = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step];
    (row?.querySelector("a[href]") ?? row)?.focus();
  }

  /** Let new rows in, and go to the first; from there on they stay in place again. */
  async function showNew() {
    const button = one("[data-held]:not([hidden])");
    if (!button) return;
    await go(location.href);
    const row = document.getElementById(button.dataset.held)?.querySelector("[data-row]");
    (row?.querySelector("a[href]") ?? row)?.focus();
  }

  const KEYS = {
    "/": () => one("[data-search]")?.focus(),
    "?": () => one("#keys")?.showModal(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    v: showNew,
    ".": toggle,
    g: () => (viewUntil = performance.now() + SECOND_KEY_MS),
    Escape: () => one("[data-close]")?.click(),
  };

  function onKey(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest(TYPING) || one("dialog[open]") || !event.key) return;
    if (event.key.length === 1 && localStorage.getItem(KEYS_OFF)) return;
    const link =
      performance.now() < viewUntil && one(`a[data-key="${CSS.escape(event.key)}"]`);
    viewUntil = 0;
    if (!link && !Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    if (link) link.click();
    else KEYS[event.key]();
  }

  function switchKeys(box) {
    if (box.checked) localStorage.setItem(KEYS_OFF, "1");
    else localStorage.removeItem(KEYS_OFF);
  }

  // ---- Start ----

  document.documentElement.classList.add("script"); // shows what is of use with script only
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("[data-filter], [data-action], [data-typed]")) return;
    event.preventDefault();
    if (form.matches("[data-typed]")) leave(form);
    else submit(form, event.submitter);
  });
  document.addEventListener("click", onClick);
  document.addEventListener("keydown", onKey);
  document.addEventListener("change", ({ target }) => {
    if (target.matches("[data-keys-off]")) switchKeys(target);
  });
  document.addEventListener("visibilitychange", onVisibility);
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => event.persisted && onVisibility());
  addEventListener("popstate", () => go(location.href));
  for (const box of all("[data-keys-off]")) box.checked = localStorage.getItem(KEYS_OFF) !== null;
  for (const tab of all(".tabs [aria-current]")) {
    const [bar, place] = [tab.parentElement, tab.getBoundingClientRect()];
    bar.scrollLeft += place.left + place.width / 2 - bar.clientWidth / 2; // on narrow screens
  }
  setClock(document.body);
  readAnew(document.body);
  decorate();
  setInterval(() => document.hidden || tick(), 1000);
  setInterval(refresh, IDLE_REFRESH_MS);
  connect();
})();
