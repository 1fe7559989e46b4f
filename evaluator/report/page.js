// The item view: filters, a list of items, and one item side by side across checkpoints.
// Model output is untrusted: everything is shown through text nodes, nothing is ever parsed as HTML.
"use strict";
(() => {
  const index = JSON.parse(document.getElementById("index").textContent);
  const FATES = { k: "kept", m: "picked only", p: "said only", l: "lost", n: "not known", u: "unmeasured" };
  const $ = (id) => document.getElementById(id);
  const controls = {
    checkpoint: $("filter-checkpoint"), fate: $("filter-fate"), task: $("filter-task"),
    language: $("filter-language"), q: $("filter-text"), outputs: $("filter-outputs"),
  };
  const byName = new Map(index.checkpoints.map((checkpoint) => [checkpoint.name, checkpoint]));
  const chunks = new Map(); // element id -> promise of its unpacked content
  let matches = []; // item numbers that pass the filters, in display order
  let current = -1; // item number

  // ---- small helpers --------------------------------------------------------------------------------------------
  function h(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return element;
  }
  const keyOf = (number) => `${index.tasks[index.task[number]]}/${index.languages[index.language[number]]}/${index.id[number]}`;
  const placeOf = (number) => [index.tasks[index.task[number]], index.languages[index.language[number]]];
  const fateOf = (checkpoint, number) => (checkpoint.fates ? FATES[checkpoint.fates[number]] : undefined);

  // JSON has no infinite numbers: they come as words.
  const numberOf = (value) => (typeof value === "string" ? Number(value) : value);
  async function unpack(name) {
    const bytes = Uint8Array.from(atob($(name).textContent), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const { s, ...columns } = JSON.parse(await new Response(stream).text());
    const content = { s, at: new Map() }; // of an item: its rows
    for (const [column, values] of Object.entries(columns)) content[column] = values.map(numberOf);
    content.n.forEach((number, row) => {
      if (content.at.has(number)) content.at.get(number).push(row);
      else content.at.set(number, [row]);
    });
    return content;
  }
  function chunk(name) {
    if (!chunks.has(name)) chunks.set(name, unpack(name));
    return chunks.get(name);
  }
  const chunkName = (tree, number) => {
    const [task, language] = placeOf(number);
    return ((tree || {})[task] || {})[language];
  };

  // One checkpoint's answers to one item as named fields; null when it was not asked.
  async function answersOf(checkpoint, number) {
    const name = chunkName(checkpoint.chunks, number);
    if (!name) return null;
    const content = await chunk(name);
    if (!content.at.has(number)) return null;
    const text = (at) => (at === null ? "" : content.s[at]);
    const records = content.at.get(number).map((row) => ({
      probe: content.probe[row], format: index.formats[content.format[row]], hit: content.hit[row], cut: content.cut[row] === 1,
      text: text(content.text[row]), option: text(content.option_text[row]), hasOption: content.option_text[row] !== null,
      thought: content.thought[row] === null ? null : text(content.thought[row]), gold: content.gold[row] === 1,
      logprob: content.logprob[row], rank: content.rank[row], margin: content.margin[row],
    }));
    const viewed = (view) => index.probes.map((probe, at) => ({ ...probe, records: records.filter((record) => record.probe === at) }))
      .filter((probe) => probe.view === view);
    const scoredOf = (list) => {
      const scored = list.filter(({ hasOption }) => hasOption).map(({ option, gold, logprob }) => ({ text: option, gold, logprob }));
      const known = scored.filter((option) => option.logprob !== null);
      const best = Math.max(...known.map((option) => option.logprob));
      const weight = ({ logprob }) => (logprob === best ? 1 : Math.exp(logprob - best)); // infinite ones too
      const total = known.reduce((sum, option) => sum + weight(option), 0);
      for (const option of known) option.share = weight(option) / total;
      return scored;
    };
    const choices = viewed("options").map((probe) => ({ title: probe.title, options: scoredOf(probe.records) }));
    const scored = choices.length ? choices[0].options : [];
    const known = scored.filter((option) => option.logprob !== null);
    const gold = known.find((option) => option.gold);
    const rivals = known.filter((option) => !option.gold).map((option) => option.logprob);
    const ranks = (view) => viewed(view).flatMap(({ title, records: all }) => all.map((record) => ({ ...record, title })))
      .filter(({ rank }) => rank !== null);
    const [ranked] = ranks("rank");
    const [aligned] = ranks("aligned").map((record) => ({ ...record, leadIn: record.text, answer: record.option }));
    return {
      said: viewed("answer").flatMap(({ title, records: all }) => all.map((record) => (
        { ...record, title, logprob: null, read: record.hasOption ? record.option : undefined }))),
      several: viewed("answers").map(({ title, records: all }) => ({ title, answers: all.map((record) => ({ ...record, thought: null })) })),
      choices, options: scored,
      recognised: gold && rivals.length && known.length === scored.length ? gold.logprob > Math.max(...rivals) : null,
      rank: ranked ? ranked.rank : null, margin: ranked ? ranked.margin : null, aligned: aligned || null,
      goldShare: gold ? gold.share : null, cut: records.some((record) => record.cut),
    };
  }

  // Text with the first occurrence of every gold answer marked.
  function marked(text, golds) {
    const lower = text.toLowerCase();
    for (const gold of golds) {
      const at = gold ? lower.indexOf(gold.toLowerCase()) : -1;
      if (at >= 0 && lower.length === text.length) {
        const end = at + gold.length;
        return [text.slice(0, at), h("mark", {}, text.slice(at, end)), text.slice(end)];
      }
    }
    return [text];
  }
  // Text with the last place marked that stands by itself and says what the grader read.
  function markedRead(text, read) {
    const word = (char) => /[\p{L}\p{N}]/u.test(char || "");
    for (let at = text.lastIndexOf(read); at >= 0; at = at ? text.lastIndexOf(read, at - 1) : -1) {
      const end = at + read.length;
      if (!word(text[at - 1]) && !word(text[end])) return [text.slice(0, at), h("mark", {}, read), text.slice(end)];
    }
    return [text];
  }
  function reading(read) {
    const found = read ? read.split("\n") : [];
    const words = found.length > 1 ? `read ${found.join(" and ")}: no answer` : found.length ? `read ${read}` : "no answer read";
    return h("small", { class: "read" }, ` ${words}`);
  }
  function output(answer, golds) {
    if (!answer) return h("span", { class: "none" }, "not asked");
    if (answer.hit === -1) return h("span", { class: "none" }, answer.text ? `excluded: ${answer.text}` : "excluded");
    if (answer.hit === -2) return h("span", { class: "none" }, `engine error ${answer.text}`.trim());
    const { text, read } = answer;
    const shown = read ? markedRead(text, read) : read === undefined ? marked(text, golds) : [text];
    return h("span", { class: answer.hit ? "yes" : "no" }, h("bdi", {}, ...(text.trim() ? shown : [h("em", { class: "none" }, "(empty)")])),
      read === undefined ? null : reading(read));
  }
  const hits = (answers) => answers.filter((answer) => answer.hit === 1).length;
  const several = index.probes.filter((probe) => probe.view === "answers").map((probe) => probe.title); // beams, samples
  const severalOf = (answers, title) => answers.several.find((each) => each.title === title).answers;
  const open = (answers) => answers.said.find((answer) => answer.format === "open");
  function badge(fate) {
    return h("span", { class: `fate ${fate.replace(" ", "_")}` }, fate);
  }

  // ---- filters --------------------------------------------------------------------------------------------------
  function options(select, names, labels) {
    select.replaceChildren(...names.map((name, at) => h("option", { value: name }, (labels || names)[at])));
  }
  function countFates() {
    const checkpoint = byName.get(controls.checkpoint.value);
    const chosen = controls.fate.value;
    const counts = {};
    if (checkpoint && checkpoint.fates) for (const code of checkpoint.fates) counts[code] = (counts[code] || 0) + 1;
    const codes = Object.keys(FATES).filter((code) => counts[code]);
    options(controls.fate, ["", ...codes.map((code) => FATES[code])],
      ["any", ...codes.map((code) => `${FATES[code]} (${counts[code]})`)]);
    controls.fate.value = chosen;
    if (controls.fate.selectedIndex < 0) controls.fate.value = "";
  }
  const haystacks = new Map(); // item number -> lower-case text with all outputs
  async function haystack(number) {
    if (controls.outputs.checked && haystacks.has(number)) return haystacks.get(number);
    const strings = [index.question[number], index.id[number], ...index.gold[number]];
    if (controls.outputs.checked) {
      for (const checkpoint of index.checkpoints) {
        const answers = await answersOf(checkpoint, number);
        if (answers) for (const list of [answers.said, ...answers.several.map((each) => each.answers)]) strings.push(...list.map((a) => a.text));
      }
    }
    const text = strings.join("\n").toLowerCase();
    if (controls.outputs.checked) haystacks.set(number, text);
    return text;
  }
  let filtering = 0;
  async function filter() {
    const turn = ++filtering;
    const checkpoint = byName.get(controls.checkpoint.value);
    const { fate, task, language } = Object.fromEntries(Object.entries(controls).map(([name, c]) => [name, c.value]));
    const text = controls.q.value.trim().toLowerCase();
    const found = [];
    for (const number of index.order) {
      const [itemTask, itemLanguage] = placeOf(number);
      if ((task && task !== itemTask) || (language && language !== itemLanguage)) continue;
      if (fate && fateOf(checkpoint, number) !== fate) continue;
      if (text) {
        const hay = await haystack(number);
        if (turn !== filtering) return; // a later filter has taken over
        if (!hay.includes(text)) continue;
      }
      found.push(number);
    }
    matches = found;
    showList();
  }

  // ---- the list -------------------------------------------------------------------------------------------------
  function strip(number) {
    const here = controls.checkpoint.value;
    return h("span", { class: "strip", "aria-hidden": "true" }, index.checkpoints.filter((checkpoint) => checkpoint.fates).map(
      (checkpoint) => h("i", {
        class: `${(fateOf(checkpoint, number) || "").replace(" ", "_")} ${checkpoint.name === here ? "here" : ""}`,
        title: `${checkpoint.name}: ${fateOf(checkpoint, number) || "not asked"}`,
      })));
  }
  const WINDOW = 300; // how many items the list holds at once
  let from = 0;
  function showList(start) {
    const centre = matches.indexOf(current) - WINDOW / 2;
    from = Math.max(0, Math.min(start === undefined ? centre : start, matches.length - WINDOW));
    const to = Math.min(matches.length, from + WINDOW);
    const held = $("list").contains(document.activeElement);
    const more = (count, at, where) => (count > 0 ? h("li", { class: "more" }, h("button", {
      type: "button", onclick: () => showList(at),
    }, `${count.toLocaleString("en")} ${where}`)) : null);
    $("count").textContent = `${matches.length.toLocaleString("en")} of ${index.order.length.toLocaleString("en")} items`;
    const shown = matches.slice(from, to).map((number) => h("li", {}, h("button", {
      type: "button", "data-item": number, onclick: () => show(number),
    }, h("span", { class: "q", dir: "auto" }, index.question[number] || index.id[number]), strip(number))));
    const [before, after] = [more(from, from - WINDOW, "earlier"), more(matches.length - to, to, "later")];
    $("list").replaceChildren(...[before, ...shown, after].filter(Boolean));
    if (held) $("list").querySelector("[data-item]")?.focus();
    if (start === undefined) point();
    else $("list").scrollTop = 0;
  }
  function point() {
    const list = $("list");
    for (const button of list.querySelectorAll("[aria-current]")) button.removeAttribute("aria-current");
    const at = matches.indexOf(current);
    if (at >= 0 && (at < from || at >= from + WINDOW)) {
      showList();
      return;
    }
    const button = list.querySelector(`[data-item="${current}"]`);
    if (!button) return;
    button.setAttribute("aria-current", "true");
    const [box, frame] = [button.getBoundingClientRect(), list.getBoundingClientRect()];
    if (box.top < frame.top) list.scrollTop -= frame.top - box.top;
    else if (box.bottom > frame.bottom) list.scrollTop += box.bottom - frame.bottom;
  }
  function step(by) {
    const at = matches.indexOf(current);
    const next = matches[at < 0 ? 0 : at + by];
    return next === undefined ? Promise.resolve() : show(next);
  }

  // ---- one item -------------------------------------------------------------------------------------------------
  function summary(rows) {
    const fates = rows.map((row) => row.fate).filter((fate) => fate && fate !== "unmeasured");
    if (!fates.length) return "No checkpoint here has a fate for this item.";
    if (fates.every((fate) => fate === "not known")) return "The dense model did not both say and pick this answer.";
    const count = (fate) => fates.filter((each) => each === fate).length;
    const parts = [
      [count("kept"), "keeps it", "keep it"],
      [count("picked only"), "only picks it", "only pick it"],
      [count("said only"), "only says it", "only say it"],
      [count("lost"), "lost it", "lost it"],
    ].filter(([n]) => n).map(([n, one, many]) => `${n} ${n === 1 ? one : many}`);
    const silent = rows.filter((row) => ["picked only", "lost"].includes(row.fate) && row.answers);
    const reachable = silent.filter((row) => row.answers.several.some((each) => hits(each.answers))).length;
    const asked = several.filter((title) => silent.some((row) => severalOf(row.answers, title).length));
    const tail = asked.length ? ` Where it is no longer said, ${reachable} of ${silent.length} still reach it in their ${asked.join(" or ")}.` : "";
    return `${fates.length} compressed checkpoint${fates.length === 1 ? "" : "s"}: ${parts.join(", ")}.${tail}`;
  }
  function choiceCell(answers) {
    if (!answers.options.length) return h("td", { class: "none" }, "not asked");
    if (answers.recognised === null) return h("td", { class: "none" }, "unmeasured");
    const percent = Math.round(100 * answers.goldShare);
    return h("td", {}, h("span", { class: answers.recognised ? "yes" : "no" }, `${percent} %`),
      h("span", { class: "meter" }, h("i", { style: `width:${percent}%` })));
  }
  function rankCell(answers) {
    if (answers.rank === null) return h("td", { class: "none" }, "not asked");
    const along = Math.min(100, (100 * Math.log10(answers.rank)) / 3);
    return h("td", { title: answers.margin === null ? "" : `margin ${answers.margin} nats` }, `${answers.rank.toLocaleString("en")}`,
      h("span", { class: "track" }, h("i", { style: `left:${along}%` })));
  }
  function alignedCell(answers) {
    if (!answers.aligned) return h("td", { class: "none" }, "not defined");
    const { rank, leadIn } = answers.aligned;
    return h("td", { title: `after "${leadIn}"` }, rank.toLocaleString("en"));
  }
  function pipsCell(answers) {
    if (!answers.length) return h("td", { class: "none" }, "not asked");
    return h("td", {}, `${hits(answers)} of ${answers.length}`,
      h("span", { class: "pips", "aria-hidden": "true" }, answers.map((answer) => h("i", { class: answer.hit === 1 ? "hit" : "" }))));
  }
  function overview(rows, golds) {
    const led = rows.some(({ answers }) => answers && answers.aligned);
    const asked = several.filter((title) => rows.some(({ answers }) => answers && severalOf(answers, title).length));
    const heads = ["checkpoint", "greedy output", "picked: gold's share", "rank", ...(led ? ["aligned rank"] : []), ...asked];
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Answers by checkpoint" }, h("table", { class: rows.length > 8 ? "answers many" : "answers" },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map(({ checkpoint, answers, fate }) => {
        const select = () => { controls.checkpoint.value = checkpoint.name; countFates(); filter(); show(current); };
        const name = h("td", { class: "name" }, h("button", { type: "button", "data-keep": checkpoint.name, onclick: select }, checkpoint.name), h("br"), fate ? badge(fate) : null);
        const line = h("tr", { onclick: select, class: checkpoint.name === controls.checkpoint.value ? "selected" : "" }, name);
        if (!answers) line.append(h("td", { class: "none", colspan: heads.length - 1 }, "not asked"));
        else line.append(h("td", { class: "output" }, output(open(answers), golds)), choiceCell(answers), rankCell(answers),
          ...(led ? [alignedCell(answers)] : []),
          ...asked.map((title) => pipsCell(severalOf(answers, title))));
        return line;
      }))));
  }
  function listing(title, answers, golds) {
    if (!answers.length) return null;
    return [h("h4", {}, title), h("ol", {}, answers.map((answer) => h("li", {}, output(answer, golds),
      answer.thought ? h("details", { class: "thought" }, h("summary", {}, "thought"), h("bdi", {}, answer.thought)) : null,
      answer.logprob === null || answer.logprob === undefined ? null : h("small", {}, answer.logprob.toFixed(2)))))];
  }
  function scoring(title, options) {
    if (!options.length) return null;
    const scored = [...options].sort((a, b) => (b.logprob ?? -Infinity) - (a.logprob ?? -Infinity));
    return [h("h4", {}, title), h("ol", {}, scored.map((option) => h("li", { class: "option" },
      h("span", {}, h("bdi", {}, option.gold ? h("mark", {}, option.text) : option.text)),
      h("small", {}, option.logprob === null ? "unmeasured" : option.logprob.toFixed(2)),
      h("i", { class: "fill", style: `width:${100 * (option.share || 0)}%` }))))];
  }
  // Where the answer is in the chosen checkpoint, in one line: from what is said to what can only be reached.
  function whereabouts({ checkpoint, answers }) {
    const said = open(answers);
    const places = [];
    if (said && said.hit >= 0) places.push(said.hit ? "said by greedy decoding" : "not said by greedy decoding");
    if (answers.recognised !== null) {
      const share = `${Math.round(100 * answers.goldShare)} % of the options' weight`;
      places.push(answers.recognised ? `picked among the options (${share})` : `not picked among the options (${share})`);
    }
    if (answers.rank !== null) places.push(`its first token at rank ${answers.rank.toLocaleString("en")}`);
    if (answers.aligned) places.push(`at rank ${answers.aligned.rank.toLocaleString("en")} after the words with which the base led up to it`);
    const found = answers.several.filter((each) => each.answers.length)
      .map((each) => `${hits(each.answers)} of ${each.answers.length} ${each.title}`);
    if (found.length) places.push(`in ${found.join(" and ")}`);
    return places.length ? h("p", { class: "where" }, h("b", {}, checkpoint.name), `: ${places.join("; ")}.`) : "";
  }
  function column({ checkpoint, answers, fate }, golds) {
    if (!answers) return h("div", {}, h("h3", {}, checkpoint.name), h("p", { class: "hint" }, "not asked"));
    const said = answers.said.map((answer) => listing(`${answer.title}, ${answer.format}`, [answer], golds));
    const choice = answers.choices.map((each) => scoring(each.title, each.options));
    const rank = answers.rank === null ? null : [h("h4", {}, "first token of the gold answer"),
      h("ol", {}, h("li", {}, h("span", {}, `rank ${answers.rank.toLocaleString("en")}`),
        answers.margin === null ? null : h("small", {}, `margin ${answers.margin.toFixed(2)} nats`)))];
    const led = answers.aligned;
    const aligned = led && [h("h4", {}, led.title),
      h("ol", {}, h("li", {}, h("span", {}, h("bdi", {}, led.leadIn, h("mark", {}, led.answer))),
        h("small", {}, [`rank ${led.rank.toLocaleString("en")}`, led.margin === null ? null : `margin ${led.margin.toFixed(2)} nats`,
          led.logprob === null ? null : `answer ${led.logprob.toFixed(2)} nats`].filter(Boolean).join(", "))))];
    return h("div", {}, h("h3", {}, checkpoint.name), badge(fate || "base"),
      answers.cut ? h("p", { class: "hint" }, "The passage was cut to fit the prompt.") : null,
      said, choice, rank, aligned, answers.several.map((each) => listing(
        `${each.title}: ${hits(each.answers)} of ${each.answers.length} hold the answer`, each.answers, golds)));
  }
  let showing = 0;
  async function show(number) {
    const turn = ++showing;
    current = number;
    const contextName = chunkName(index.contexts, number);
    const [context, ...answers] = await Promise.all([
      contextName ? chunk(contextName) : null, ...index.checkpoints.map((checkpoint) => answersOf(checkpoint, number)),
    ]);
    if (turn !== showing) return;
    const golds = index.gold[number];
    const rows = index.checkpoints.map((checkpoint, at) => ({ checkpoint, answers: answers[at], fate: fateOf(checkpoint, number) }))
      .filter((row) => row.answers || row.fate);
    const chosen = rows.find((row) => row.checkpoint.name === controls.checkpoint.value);
    const base = chosen && rows.find((row) => row.checkpoint.name === chosen.checkpoint.base);
    const at = matches.indexOf(number);
    const passage = context && context.at.has(number) ? context.s[context.at.get(number)[0]] : "";
    const turnButton = (label, by, able) => h("button", {
      type: "button", "data-keep": `turn ${label}`, onclick: () => step(by), disabled: able ? null : "",
    }, label);
    const kept = $("item").contains(document.activeElement) && document.activeElement.dataset.keep;
    $("item").replaceChildren(
      h("div", { class: "bar" }, h("code", {}, index.id[number]), h("span", {}, placeOf(number).reverse().join(", ")), h("span", { class: "grow" }),
        h("span", {}, at < 0 ? "" : `${at + 1} of ${matches.length}`),
        turnButton("Previous", -1, at > 0), turnButton("Next", 1, at < matches.length - 1)),
      h("p", { class: "question", dir: "auto" }, index.question[number] || "(question text not kept in this run)"),
      h("p", { class: "gold" }, "Gold answer", ...[...new Set(golds)].map((gold) => h("b", { dir: "auto" }, gold))),
      passage ? h("details", {}, h("summary", {}, "Passage"), h("p", { class: "passage", dir: "auto" }, ...marked(passage, golds))) : "",
      h("p", { class: "summary" }, summary(rows)),
      chosen && chosen.answers ? whereabouts(chosen) : "",
      overview(rows, golds),
      h("div", { class: "columns" }, ...[base, chosen].filter(Boolean).map((row) => column(row, golds))));
    if (kept) { // the keyboard stays where it was: on the new button of the same name, or on its neighbour
      const buttons = [...$("item").querySelectorAll("[data-keep]:enabled")];
      (buttons.find((button) => button.dataset.keep === kept) || buttons[0])?.focus({ preventScroll: true });
    }
    $("shown").textContent = `Item ${index.id[number]}${at < 0 ? "" : `, ${at + 1} of ${matches.length}`}`;
    point();
    remember();
  }
  function showNone() {
    showing += 1; // an item that is still being unpacked
    current = -1;
    $("item").replaceChildren(h("p", { class: "hint" }, "No item passes the filters."));
    $("shown").textContent = "No item passes the filters.";
  }

  // The run's language that a browser calls "de-AT": by its code or its English name.
  function languageOf(tag) {
    const code = tag.split("-")[0].toLowerCase();
    const name = new Intl.DisplayNames(["en"], { type: "language" }).of(code).toLowerCase();
    return index.languages.find((language) => [code, name].includes(language.toLowerCase()));
  }

  // ---- the address ----------------------------------------------------------------------------------------------
  function remember() {
    const state = new URLSearchParams();
    if (current >= 0) state.set("item", keyOf(current));
    for (const name of ["checkpoint", "fate", "task", "language", "q"]) {
      if (controls[name].value) state.set(name, controls[name].value);
    }
    history.replaceState(null, "", `#${state.toString().replaceAll("%2F", "/")}`);
  }
  async function restore() {
    if (!index.order.length) { // texts only: nothing was asked
      $("item").replaceChildren(h("p", { class: "hint" }, "This run has no questions."));
      return;
    }
    const state = new URLSearchParams(location.hash.slice(1));
    const linked = ["item", "checkpoint", "fate", "task", "language", "q"].some((name) => state.has(name));
    const compressed = index.checkpoints.filter((checkpoint) => checkpoint.fates);
    const gone = (checkpoint, codes) => index.order.filter((number) => codes.includes(checkpoint.fates[number]));
    const worst = [...compressed].sort((a, b) => gone(b, "ml").length - gone(a, "ml").length)[0];
    controls.checkpoint.value = state.get("checkpoint") || (worst || index.checkpoints[0]).name;
    if (controls.checkpoint.selectedIndex < 0) controls.checkpoint.selectedIndex = 0;
    countFates();
    const code = worst && !gone(worst, "m").length ? "l" : "m";
    controls.fate.value = linked ? state.get("fate") || "" : FATES[code];
    if (controls.fate.selectedIndex < 0) controls.fate.value = "";
    for (const name of ["task", "language", "q"]) controls[name].value = state.get(name) || "";
    const own = worst && !linked && navigator.languages.map(languageOf).find((language) => (
      gone(worst, code).some((number) => placeOf(number)[1] === language)));
    if (own) controls.language.value = own;
    await filter();
    const wanted = state.get("item");
    const number = wanted === null ? -1 : index.order.find((n) => keyOf(n) === wanted || index.id[n] === wanted) ?? -1;
    const start = number >= 0 ? number : matches[0];
    const hash = location.hash;
    if (start === undefined) showNone();
    else await show(start);
    if (linked) $("items").scrollIntoView();
    else history.replaceState(null, "", hash || location.pathname + location.search);
  }
  async function changed() {
    countFates();
    await filter();
    if (!matches.length) showNone();
    else show(matches.includes(current) ? current : matches[0]);
  }

  options(controls.checkpoint, index.checkpoints.map((checkpoint) => checkpoint.name));
  options(controls.task, ["", ...index.tasks], ["all", ...index.tasks]);
  options(controls.language, ["", ...index.languages], ["all", ...index.languages]);
  $("label-task").hidden = index.tasks.length < 2;
  $("list").addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    step(by).then(() => $("list").querySelector("[aria-current]")?.focus());
  });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("filters").addEventListener("input", changed);
  window.addEventListener("hashchange", () => { if (location.hash.includes("=")) restore(); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target === controls.q) { controls.q.blur(); return; }
    // A table that has the focus scrolls with the arrow keys.
    if (!$("keys").checked || event.target.closest("input, select, textarea, .scroll, .plot, nav") || event.ctrlKey || event.metaKey || event.altKey) return;
    const box = $("items").getBoundingClientRect();
    if (box.top > innerHeight || box.bottom < 0) return;
    if (event.key === "ArrowLeft") step(-1);
    else if (event.key === "ArrowRight") step(1);
    else if (event.key === "/") { event.preventDefault(); controls.q.focus(); }
  });
  // ---- more analyses --------------------------------------------------------------------------------------------
  const analyses = [...document.querySelectorAll("#more > section")];
  $("filter-more").addEventListener("input", ({ target }) => {
    const wanted = target.value.trim().toLowerCase();
    for (const each of analyses) each.hidden = !each.textContent.toLowerCase().includes(wanted);
    $("none").textContent = analyses.every((each) => each.hidden) ? "No analysis has these words." : "";
  });
  // A link to a folded section opens it.
  function unfold() {
    const section = analyses.find((each) => `#${each.id}` === location.hash);
    if (!section) return;
    section.hidden = false;
    section.querySelector("details").open = true;
    section.scrollIntoView();
  }
  window.addEventListener("hashchange", unfold);
  // ---- navigation: it marks the section that the reader is in ---------------------------------------------------
  const links = [...document.querySelectorAll("nav a[href^='#']")];
  function follow() {
    const atEnd = scrollY > 0 && innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
    const begun = links.filter((link) => atEnd || $(link.hash.slice(1)).getBoundingClientRect().top < Math.min(innerHeight / 3, 240));
    const here = begun.pop() || links[0];
    for (const link of links) link.removeAttribute("aria-current");
    here.setAttribute("aria-current", "true");
  }
  window.addEventListener("scroll", follow, { passive: true });
  window.addEventListener("resize", follow);
  restore().then(unfold).then(follow);
})();
