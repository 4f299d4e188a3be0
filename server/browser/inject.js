/* Runs in the page, in a world of its own: the page's scripts neither see nor change it. One function,
 * sent with each call: cmd, its arguments, and for ref selectors the element.
 * Answers are plain objects; {bad: text} is a selector that can't be read, {wait: text} "not yet",
 * {cannot: text} never with this element, {missing: true} nothing there that could be waited for. */
async function (cmd, a, given) {
    class Bad extends Error {}

    /* --- selectors -------------------------------------------------------------------------- */

    function split(selector) {
        const parts = [];
        let quote = '', from = 0;
        for (let i = 0; i < selector.length; i++) {
            const c = selector[i];
            if (quote) {
                if (c === '\\') i++;
                else if (c === quote) quote = '';
            } else if (c === '"' || c === "'") {
                quote = c;
            } else if (c === '>' && selector[i + 1] === '>') {
                parts.push(selector.slice(from, i));
                i++;
                from = i + 1;
            }
        }
        parts.push(selector.slice(from));
        return parts.map(p => p.trim());
    }

    function parse(selector) {
        return split(selector).map(text => {
            if (!text) throw new Bad('a part of it is empty');
            if (text.startsWith('//') || text.startsWith('..') || text.startsWith('(//')) return ['xpath', text];
            const m = /^(css|xpath|text|id|data-testid)=([^]*)$/.exec(text);
            if (!m) {
                if (/^(['"])[^]*\1$/.test(text) && text.length > 2) return ['text', text];
                return ['css', text];
            }
            const body = m[2].trim();
            if (!body) throw new Bad('nothing follows ' + m[1] + '=');
            if (m[1] === 'id') return ['css', '#' + CSS.escape(body)];
            if (m[1] === 'data-testid') return ['css', `[data-testid="${CSS.escape(body)}"]`];
            return [m[1], body];
        });
    }

    /* :has-text("x"), :text("x") and :visible, at the end of a CSS selector, are filters of ours. */
    function cssParts(css) {
        const filters = [];
        for (;;) {
            const m = /^([^]*):(has-text|text)\(\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*\)$/.exec(css);
            if (m) {
                const wanted = norm(m[3].slice(1, -1).replace(/\\(.)/g, '$1')).toLowerCase();
                filters.push(m[2] === 'has-text' ? e => norm(textOf(e)).toLowerCase().includes(wanted)
                                                 : e => matchesText(e, t => t.toLowerCase().includes(wanted)));
                css = m[1];
            } else if (css.endsWith(':visible')) {
                filters.push(isVisible);
                css = css.slice(0, -8);
            } else {
                return [css || '*', filters];
            }
        }
    }

    const norm = s => s.replace(/[\s\u200b]+/g, ' ').trim();
    const skipped = e => /^(SCRIPT|STYLE|NOSCRIPT|HEAD|TEMPLATE)$/.test(e.nodeName);

    function textOf(e) {
        if (skipped(e)) return '';
        if (e.localName === 'input' && /^(submit|button|reset)$/.test(e.type)) return e.value;
        if (!e.shadowRoot && !e.querySelector?.('script,style,noscript,template')) return e.textContent || '';
        let s = '';
        for (let n = e.firstChild; n; n = n.nextSibling) {
            if (n.nodeType === 3) s += n.nodeValue;
            else if (n.nodeType === 1) s += textOf(n);
        }
        if (e.shadowRoot) s += textOf(e.shadowRoot);
        return s;
    }

    function matchesText(e, test) {
        if (skipped(e) || !test(norm(textOf(e)))) return false;
        for (const child of [...e.children, ...(e.shadowRoot ? e.shadowRoot.children : [])]) {
            if (!skipped(child) && test(norm(textOf(child)))) return false;
        }
        return true;
    }

    function textTest(body) {
        const m = /^(['"])([^]*)\1$/.exec(body);
        if (m) {
            const wanted = norm(m[2]);
            return t => t === wanted;
        }
        const r = /^\/([^]+)\/([a-z]*)$/.exec(body);
        if (r) {
            let re;
            try { re = new RegExp(r[1], r[2].replace('g', '')); } catch (e) { throw new Bad(e.message); }
            return t => re.test(t);
        }
        const wanted = norm(body).toLowerCase();
        return t => t.toLowerCase().includes(wanted);
    }

    function* shadowRoots(root) {
        for (const e of root.querySelectorAll('*')) {
            if (e.shadowRoot) yield e.shadowRoot;
        }
    }

    /* Descends only where the text is, so a big page costs its matching branches. */
    function findText(root, test, out, first) {
        for (const e of root.children) {
            if (skipped(e)) continue;
            if (!test(norm(textOf(e)))) {
                /* An exact text may still sit deeper, beside other text. */
                findText(e, test, out, first);
            } else {
                const before = out.length;
                findText(e, test, out, first);
                if (out.length === before) out.push(e);
            }
            if (e.shadowRoot) findText(e.shadowRoot, test, out, first);
            if (first && out.length) return;
        }
    }

    function query(root, [kind, body], out, first) {
        if (kind === 'xpath') {
            let found;
            try {
                const doc = root.ownerDocument || root;
                if (root.nodeType !== 1 && root.nodeType !== 9) return;
                const expr = root.nodeType === 1 && body.startsWith('/') ? '.' + body : body;
                found = doc.evaluate(expr, root, null, XPathResult.ORDERED_NODE_SNAPSHOT_TYPE, null);
            } catch (e) {
                throw new Bad('no valid XPath');
            }
            for (let i = 0; i < found.snapshotLength; i++) {
                if (found.snapshotItem(i).nodeType === 1) out.push(found.snapshotItem(i));
            }
            return;
        }
        if (kind === 'text') {
            const test = textTest(body);
            findText(root, test, out, first);
            if (!out.length && root.nodeType === 1 && matchesText(root, test)) out.push(root);
            return;
        }
        const [css, filters] = cssParts(body);
        const add = scope => {
            let list;
            try {
                list = first && !filters.length ? [scope.querySelector(css)] : scope.querySelectorAll(css);
            } catch (e) {
                throw new Bad('no valid CSS');
            }
            for (const e of list) {
                if (e && filters.every(f => f(e))) {
                    out.push(e);
                    if (first) return true;
                }
            }
            for (const s of shadowRoots(scope)) {
                if (add(s)) return true;
            }
            return false;
        };
        add(root);
        if (root.shadowRoot) add(root.shadowRoot);
    }

    function queryAll(doc, parts, first) {
        let roots = [doc];
        for (let i = 0; i < parts.length; i++) {
            const out = [];
            for (const r of roots) {
                query(r, parts[i], out, first && i === parts.length - 1);
                if (first && i === parts.length - 1 && out.length) break;
            }
            roots = [...new Set(out)];
            if (!roots.length) break;
        }
        if (roots.length) return roots;
        /* Nothing in this document: the frames in it. */
        for (const f of doc.querySelectorAll('iframe, frame')) {
            let inner = null;
            try { inner = f.contentDocument; } catch (e) { /* another process */ }
            if (!inner) continue;
            const found = queryAll(inner, parts, first);
            if (found.length) return found;
        }
        return [];
    }

    const find = () => given ? (given.isConnected ? given : null) : queryAll(document, parse(a.selector), true)[0];

    /* --- elements --------------------------------------------------------------------------- */

    const view = e => e.ownerDocument.defaultView;

    function isVisible(e) {
        const style = view(e)?.getComputedStyle(e);
        if (!style) return false;
        if (style.display === 'contents') return [...e.children].some(isVisible) || !!norm(e.textContent);
        if (style.visibility !== 'visible') return false;
        if (e.checkVisibility && !e.checkVisibility()) return false;
        const r = e.getBoundingClientRect();
        return r.width > 0 && r.height > 0;
    }

    const isEnabled = e => !(e.matches(':disabled') || e.closest('[aria-disabled="true"]'));

    function isEditable(e) {
        if (e.isContentEditable) return true;
        return /^(INPUT|TEXTAREA|SELECT)$/.test(e.nodeName) ? !e.readOnly : false;
    }

    const selectable = e => e.nodeName === 'TEXTAREA' || /^(text|search|url|tel|password|email|number)$/.test(e.type);

    const holdsText = e => e.isContentEditable || e.nodeName === 'TEXTAREA' ||
        (e.nodeName === 'INPUT' && !/^(checkbox|radio|file|button|submit|reset|image|hidden)$/.test(e.type));

    /* Itself, what is around it in an editable region, or what its shadow root hands the focus to. */
    function hasFocus(e) {
        const active = e.getRootNode().activeElement;
        return !!active && (active === e || (e.isContentEditable && active.contains(e)));
    }

    /* From an element's viewport to the page's own. */
    function frameOffset(e) {
        let x = 0, y = 0;
        for (let w = view(e); w && w !== w.top; w = w.parent) {
            const f = w.frameElement;
            if (!f) break;
            const r = f.getBoundingClientRect(), s = view(f).getComputedStyle(f);
            x += r.left + f.clientLeft + parseFloat(s.paddingLeft);
            y += r.top + f.clientTop + parseFloat(s.paddingTop);
        }
        return {x, y};
    }

    function clickRect(e) {
        for (const r of e.getClientRects()) {
            if (r.width >= 1 && r.height >= 1) return r;
        }
        return e.getBoundingClientRect();
    }

    const parentOf = n => n.assignedSlot || n.parentElement || (n.getRootNode() instanceof ShadowRoot ? n.getRootNode().host : null);

    function hit(e, x, y) {
        let h = e.ownerDocument.elementFromPoint(x, y);
        while (h && h.shadowRoot) {
            const inner = h.shadowRoot.elementFromPoint(x, y);
            if (!inner || inner === h) break;
            h = inner;
        }
        return h;
    }

    function receives(e, h) {
        for (let n = h; n; n = parentOf(n)) {
            if (n === e) return true;
            if (n.localName === 'label' && n.control === e) return true;
        }
        return e.localName === 'option' && h && h.localName === 'select';
    }

    function describe(e) {
        let s = '<' + e.localName;
        if (e.id) s += ` id="${e.id.slice(0, 40)}"`;
        else if (typeof e.className === 'string' && e.className) s += ` class="${e.className.slice(0, 40)}"`;
        return s + '>';
    }

    const frame = () => new Promise(done => {
        const t = setTimeout(done, 100);
        requestAnimationFrame(() => { clearTimeout(t); done(); });
    });

    async function actionable() {
        let e = find();
        if (!e) return given ? {missing: true} : {wait: 'no element matches it'};
        if (e.nodeName === 'OPTION' && e.closest('select')) e = e.closest('select');
        if (!isVisible(e)) return {wait: 'the element is not visible', found: true};
        if (!isEnabled(e)) return {wait: 'the element is disabled', found: true};
        const before = e.getBoundingClientRect();
        await frame();
        if (!e.isConnected) return {wait: 'the element was replaced', found: true};
        const after = e.getBoundingClientRect();
        if (before.left !== after.left || before.top !== after.top || before.width !== after.width || before.height !== after.height)
            return {wait: 'the element is moving', found: true};
        let blocked = null;
        for (const block of [null, 'center', 'end', 'start']) {
            if (block) e.scrollIntoView({block, inline: block === 'center' ? 'center' : 'nearest', behavior: 'instant'});
            else if (e.scrollIntoViewIfNeeded) e.scrollIntoViewIfNeeded(true);
            for (let w = view(e); w && w !== w.top && w.frameElement; w = w.parent)
                w.frameElement.scrollIntoViewIfNeeded?.(true);
            const r = clickRect(e);
            const x = r.left + r.width / 2, y = r.top + r.height / 2;
            const h = hit(e, x, y);
            if (h && receives(e, h)) {
                const o = frameOffset(e);
                return {ok: true, x: x + o.x, y: y + o.y, tag: e.localName};
            }
            blocked = h || blocked;
        }
        return {wait: blocked ? `the element is covered by ${describe(blocked)}` : 'the element is outside of the page', found: true};
    }

    /* --- commands --------------------------------------------------------------------------- */

    const commands = {
        where: () => ({url: location.href, title: document.title}),

        content() {
            const d = document, base = {url: location.href, title: d.title};
            if (a.text) return {...base, content: d.body ? d.body.innerText : d.documentElement?.textContent ?? ''};
            const type = d.doctype ? new XMLSerializer().serializeToString(d.doctype) : '';
            return {...base, content: type + (d.documentElement ? d.documentElement.outerHTML : '')};
        },

        /* Can nothing here start another request? (no script, no frame, no refresh, no handler) */
        still() {
            const d = document;
            if (d.readyState !== 'complete' || d.scripts.length ||
                d.querySelector('iframe,frame,object,embed,portal,video,audio,meta[http-equiv=refresh i],link[rel~=preload i],link[rel~=prefetch i]'))
                return {still: false};
            const all = d.getElementsByTagName('*');
            if (all.length > 3000) return {still: false};
            for (const e of all) {
                for (const n of e.attributes) {
                    if (n.name.startsWith('on')) return {still: false};
                }
            }
            return {still: true};
        },

        check() {
            const e = find();
            const state = a.state;
            const ok = state === 'attached' ? !!e : state === 'detached' ? !e : state === 'hidden' ? !e || !isVisible(e) : !!e && isVisible(e);
            if (ok) return {ok: true};
            return {wait: !e ? 'no element matches it' : state === 'detached' ? 'the element is still there' :
                    state === 'hidden' ? 'the element is still visible' : 'the element is not visible'};
        },

        text() {
            const wanted = norm(a.text);
            const has = d => norm(d.body?.innerText ?? '').includes(wanted) ||
                [...d.querySelectorAll('iframe, frame')].some(f => { try { return f.contentDocument && has(f.contentDocument); } catch (e) { return false; } });
            return has(document) ? {ok: true} : {wait: 'the text is not there'};
        },

        actionable,

        async focus() {
            let e = find();
            if (!e) return given ? {missing: true} : {wait: 'no element matches it'};
            if (e.localName === 'label' && e.control) e = e.control;
            if (!isVisible(e)) return {wait: 'the element is not visible', found: true};
            if (!isEnabled(e)) return {wait: 'the element is disabled', found: true};
            if (a.edit && /^(INPUT|TEXTAREA)$/.test(e.nodeName) && !isEditable(e))
                return {wait: 'the element is read-only', found: true};
            if (a.clear && !holdsText(e)) return {cannot: 'there is no text to clear in the element'};
            e.scrollIntoViewIfNeeded?.(true);
            for (let w = view(e); w && w !== w.top && w.frameElement; w = w.parent) w.frameElement.focus();
            const root = e.getRootNode(), before = root.activeElement;
            e.focus({preventScroll: true});
            /* What takes no focus leaves it where it was: the keys would go into another field. (A page may
             * hand the focus on from an element: then they go there.) */
            if (!hasFocus(e) && root.activeElement === before) {
                if (a.edit && !/^(BODY|HTML)$/.test(e.nodeName)) return {cannot: 'no text can be typed into the element'};
                before?.blur();
            }
            if (a.clear) {
                if (e.nodeName === 'INPUT' || e.nodeName === 'TEXTAREA') {
                    if (e.value !== '') {
                        /* Undoable where there is a selection to delete; elsewhere that would be another field's. */
                        if (selectable(e)) {
                            e.select();
                            e.ownerDocument.execCommand('delete');
                        }
                        if (e.value !== '') {
                            e.value = '';
                            e.dispatchEvent(new Event('input', {bubbles: true}));
                            e.dispatchEvent(new Event('change', {bubbles: true}));
                        }
                    }
                } else if (e.isContentEditable) {
                    const range = e.ownerDocument.createRange();
                    range.selectNodeContents(e);
                    const s = view(e).getSelection();
                    s.removeAllRanges();
                    s.addRange(range);
                    e.ownerDocument.execCommand('delete');
                }
            }
            return {ok: true};
        },

        box() {
            const e = find();
            if (!e) return {missing: true};
            if (!isVisible(e)) return {wait: 'the element is not visible'};
            e.scrollIntoViewIfNeeded?.(true);
            const r = e.getBoundingClientRect(), o = frameOffset(e), t = window;
            return {ok: true, x: r.left + o.x + t.scrollX, y: r.top + o.y + t.scrollY, width: r.width, height: r.height};
        },

        scroll() {
            const box = document.scrollingElement || document.documentElement;
            let target = null;
            if (a.selector || given) {
                target = find();
                if (!target) return given ? {missing: true} : {wait: 'no element matches it'};
            }
            if (target && a.x === undefined && a.y === undefined && !a.to) {
                target.scrollIntoView({block: 'center', inline: 'nearest', behavior: 'instant'});
            } else {
                const s = target || box;
                if (a.to === 'top') s.scrollTo({top: 0, left: 0, behavior: 'instant'});
                else if (a.to === 'bottom') s.scrollTo({top: s.scrollHeight, behavior: 'instant'});
                else s.scrollBy({left: a.x || 0, top: a.y || 0, behavior: 'instant'});
            }
            const s = target && (a.x !== undefined || a.y !== undefined || a.to) ? target : box;
            return {ok: true, x: s.scrollLeft, y: s.scrollTop, max_x: Math.max(0, s.scrollWidth - s.clientWidth), max_y: Math.max(0, s.scrollHeight - s.clientHeight)};
        },
    };

    /* A number that no snapshot gave out may be a document's or a text's. */
    if (given && given.nodeType !== Node.ELEMENT_NODE) return {missing: true};
    try {
        return await commands[cmd]();
    } catch (e) {
        if (e instanceof Bad) return {bad: e.message};
        throw e;
    }
}
