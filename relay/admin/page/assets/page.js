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

  function morph(old, fresh, held) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    // The script renders these itself.
    if (old.matches("[data-held], [data-live-state]")) return;
    if (old.localName === "time" && old.dateTime && old.dateTime === fresh.dateTime) return;
    if (!old.matches(FIELDS) || old.type === "file") {
      morphAttributes(old, fresh);
      morphChildren(old, fresh, held);
      return;
    }
    const property = changing(old);
    const now = old[property];
    const isEdited = now !== givenValue(old);
    morphAttributes(old, fresh);
    morphChildren(old, fresh, held);
    const wanted = isEdited ? now : givenValue(old);
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
      morphRows(parent, [...fresh.children], own, held);
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

  /** Change the rows that are there, and count those that wait. */
  function morphRows(list, rows, own, held) {
    for (const row of rows) if (own.has(row.id)) morph(own.get(row.id), row, held);
    showHeld(list, rows.filter((row) => !own.has(row.id)).length);
  }

  function showHeld(list, count) {
    const button = one(`[data-held="${list.id}"]`);
    if (!button) return;
    button.hidden = !count;
    button.textContent = `${count} ${button.dataset.words ?? "new"}`;
  }

  /** Show a fetched document; `held` are lists that take no new rows, and a notice that stays. */
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

  function request(url, { isByPerson = false, body } = {}) {
    return new Promise((resolve) => {
      const request = new XMLHttpRequest();
      request.open(body ? "POST" : "GET", url);
      request.responseType = "document";
      request.timeout = REQUEST_MS;
      // Only what a person does keeps a session alive.
      request.setRequestHeader("Relay-Fragment", isByPerson ? "person" : "1");
      request.onloadend = () => resolve(request);
      request.send(body);
    });
  }

  /** Show an answer; return whether it was a page that can be shown. */
  function receive(answer, held = new Set()) {
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
  let state = "stopped"; // live, paused, reconnecting or stopped
  let words = ""; // for the state
  let [isWanted, isRunning, timer, nextAt] = [false, false, 0, -Infinity];

  /** Fetch the page again, soon; many calls are one request. */
  function refresh() {
    isWanted = true;
    if (isRunning || timer || going || state !== "live" || document.hidden) return;
    if (one("dialog[open]")) return;
    timer = setTimeout(fetchPage, Math.max(0, nextAt - performance.now()));
  }

  let anew = 0; // timer

  /** Fetch the page again once the server reads anew what it took from an older, slow read. */
  function readAnew(body) {
    clearTimeout(anew);
    if (body.dataset.againMs) anew = setTimeout(refresh, Number(body.dataset.againMs));
  }

  /** Return what a refresh leaves alone; the server shows a notice once. */
  const kept = () => new Set([...all("[data-hold]").filter(isHeld), ...all("#notice")]);

  async function fetchPage() {
    timer = 0;
    if (going) return; // it refreshes when it is done
    [isWanted, isRunning] = [false, true];
    const [mine, begunAt] = [generation, performance.now()];
    const answer = await request(location.href);
    isRunning = false;
    const tookMs = performance.now() - begunAt;
    nextAt = begunAt + Math.max(REFRESH_MS, Math.min(tookMs / REFRESH_SHARE, tookMs + REFRESH_MAX_MS));
    const isFailed = !answer.status || answer.status >= 500; // the last good page stays
    if (isFailed) setTimeout(refresh, RETRY_MS);
    else if (mine === generation) receive(answer, kept());
    if (isWanted || mine !== generation) refresh();
  }

  const TITLES = { paused: "Go on", stopped: "Log in again" }; // of the button

  function say(name, text) {
    [state, words] = [name, text];
    document.body.dataset.state = name;
    const place = one("[data-live-state]");
    if (!place) return;
    if (place.textContent !== text) place.textContent = text;
    place.title = TITLES[name] ?? "Pause";
    place.hidden = false;
  }

  /** Say something for a moment. */
  function warn(text) {
    const place = one("[data-live-state]");
    if (place) place.textContent = text;
    setTimeout(() => state === "stopped" || say(state, words), WARNING_MS);
  }

  const minute = (ms) => `${new Date(ms).toISOString().slice(11, 16)} UTC`;

  function connect() {
    source?.close();
    if (state === "paused" || document.hidden || !document.body.dataset.liveUrl) return;
    const opened = (source = new EventSource(document.body.dataset.liveUrl));
    opened.onmessage = ({ data }) => hear(JSON.parse(data));
    opened.onerror = () => {
      if (opened !== source) return;
      if (state !== "reconnecting") say("reconnecting", `Reconnecting since ${minute(Date.now() + ahead)}`);
      if (opened.readyState === EventSource.CLOSED) reconnect();
    };
  }

  /** Find out why the stream was refused: a login has ended, or a proxy waits for the relay. */
  async function reconnect() {
    const answer = await request(location.href);
    if (answer.status === 401) stop();
    else if (state === "reconnecting") setTimeout(() => state === "reconnecting" && connect(), RETRY_MS);
  }

  function hear(message) {
    if (message.started_ms) {
      const isOther = relay !== null && relay !== message.started_ms;
      relay = message.started_ms;
      say("live", isOther ? `Live, relay restarted ${minute(relay)}` : "Live");
      refresh();
    } else if (going || topics().some((each) => message.topics.includes(each))) {
      refresh(); // the view to come may have other topics than the one that is shown
    }
  }

  function stop() {
    source?.close();
    say("stopped", "Stopped: log in again");
  }

  function toggle() {
    if (state === "stopped") location.reload();
    else if (state === "paused") {
      say("reconnecting", "Reconnecting");
      connect();
    } else {
      source?.close();
      say("paused", "Paused");
    }
  }

  function onVisibility() {
    if (document.hidden) source?.close();
    else if (state !== "stopped") connect();
  }

  // ---- Times by the server's clock, and what is of use with script only ----

  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const UNITS = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  let ahead = 0; // the server's clock, in milliseconds

  function setClock(body) {
    if (body.dataset.now) ahead = Number(body.dataset.now) - Date.now();
  }

  function relative(ms) {
    const seconds = Math.floor(Math.abs(ms) / 1000);
    const unit = UNITS.find(([size]) => seconds >= size);
    if (!unit) return "now";
    const text = `${Math.floor(seconds / unit[0])} ${unit[1]}`;
    return ms < 0 ? `in ${text}` : `${text} ago`;
  }

  function decorate() {
    for (const button of all("[data-copy][hidden]")) button.hidden = false;
    for (const time of all("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      if ("relative" in time.dataset) {
        const text = relative(Date.now() + ahead - at);
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
    await go(url.href, values);
    for (const button of buttons) button.disabled = false;
    const next = submitter?.isConnected ? submitter : one("#main");
    next.focus({ preventScroll: true });
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
    const target = event.target.closest("[data-copy], [data-held], [data-live-state], [data-keys-open]");
    if (!target) return;
    if ("copy" in target.dataset) copy(target);
    else if ("held" in target.dataset) go(location.href);
    else if ("liveState" in target.dataset) toggle();
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

  const KEYS = {
    "/": () => one("[data-search]")?.focus(),
    "?": () => one("#keys")?.showModal(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
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
    if (!event.target.matches("form[data-filter], form[data-action]")) return;
    event.preventDefault();
    submit(event.target, event.submitter);
  });
  document.addEventListener("click", onClick);
  document.addEventListener("keydown", onKey);
  document.addEventListener("change", ({ target }) => {
    if (target.matches("[data-keys-off]")) switchKeys(target);
  });
  document.addEventListener("close", () => isWanted && refresh(), true);
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
  setInterval(() => document.hidden || decorate(), 1000);
  setInterval(refresh, IDLE_REFRESH_MS);
  state = "reconnecting";
  connect();
})();
