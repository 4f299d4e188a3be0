/* Runs in the page's own world with a script's value as `this`: calls it when it is a function, awaits
 * it, and turns it into JSON text by the documented rules (docs/browser.md). The server parses what
 * comes, so a page that tampers with its built-ins only spoils its own result. */
async function () {
    'use strict';
    const MAX_CHARS = 96 * 1024 * 1024, MAX_VALUES = 4000000, MAX_DEPTH = 400;
    let value = this;
    if (typeof value === 'function') value = value();
    value = await value;

    const out = [], path = new Set();
    let chars = 0, values = 0;
    const put = s => {
        chars += s.length;
        if (chars > MAX_CHARS) throw new Error('the result is too large');
        out.push(s);
    };
    const quote = s => JSON.stringify(s.toWellFormed ? s.toWellFormed() : s);
    const pad = (n, w) => String(n).padStart(w, '0');
    const dateText = d => {
        const ms = d.getUTCMilliseconds();
        return `${pad(d.getUTCFullYear(), 4)}-${pad(d.getUTCMonth() + 1, 2)}-${pad(d.getUTCDate(), 2)} ` +
            `${pad(d.getUTCHours(), 2)}:${pad(d.getUTCMinutes(), 2)}:${pad(d.getUTCSeconds(), 2)}` +
            (ms ? '.' + pad(ms, 3) + '000' : '') + '+00:00';
    };
    const is = (v, name) => typeof globalThis[name] === 'function' && v instanceof globalThis[name];

    function number(n) {
        if (!Number.isFinite(n)) return 'null';
        if (Object.is(n, -0)) return '-0.0';
        if (Number.isInteger(n) && Math.abs(n) >= 2 ** 63) return n.toExponential();
        return String(n);
    }

    function write(v) {
        if (++values > MAX_VALUES) throw new Error('the result has too many values');
        switch (typeof v) {
        case 'string': return put(quote(v));
        case 'number': return put(number(v));
        case 'boolean': return put(String(v));
        case 'bigint':
            return put(v >= -(2n ** 63n) && v < 2n ** 63n ? String(v) : quote(String(v)));
        case 'object': break;
        default: return put('null');
        }
        if (v === null) return put('null');
        if (v === globalThis || is(v, 'Window')) return put('"ref: <Window>"');
        if (is(v, 'Document')) return put('"ref: <Document>"');
        if (is(v, 'Node')) return put('"ref: <Node>"');
        const tag = Object.prototype.toString.call(v);
        if (tag === '[object Date]') return put(isNaN(v) ? 'null' : quote(dateText(v)));
        if (tag === '[object RegExp]' || is(v, 'URL')) return put(quote(String(v)));
        if (is(v, 'Error') || tag === '[object Error]') return put(quote(String(v.message || v.name)));
        if (is(v, 'Number') || is(v, 'String') || is(v, 'Boolean')) return write(v.valueOf());
        if (is(v, 'Map') || is(v, 'Set')) return put('{}');
        if (path.has(v)) return put('"[Circular]"');
        if (path.size >= MAX_DEPTH) return put('"[Too deep]"');
        path.add(v);
        const list = Array.isArray(v) || (ArrayBuffer.isView(v) && typeof v.length === 'number');
        if (list) {
            put('[');
            for (let i = 0; i < v.length; i++) {
                if (i) put(',');
                write(v[i]);
            }
            put(']');
        } else {
            let keys = Object.keys(v), from = v;
            if (!keys.length && typeof v.toJSON === 'function') {
                from = v.toJSON();
                if (typeof from !== 'object' || from === null || Array.isArray(from)) {
                    write(from);
                    path.delete(v);
                    return;
                }
                keys = Object.keys(from);
            }
            put('{');
            let first = true;
            for (const k of keys) {
                let item;
                try { item = from[k]; } catch (e) { continue; }
                put((first ? '' : ',') + quote(k.replace(/\0/g, '\ufffd')) + ':');
                first = false;
                write(item);
            }
            put('}');
        }
        path.delete(v);
    }

    write(value);
    return out.join('');
}
