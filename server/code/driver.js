// The same for Node: see driver.py. Declarations at the top of a text are global and stay.
(() => {
  const net = require('net'), vm = require('vm'), util = require('util');
  const link = new net.Socket({fd: 4});
  const limit = 8 << 20;
  let shown = [], failed = false, count = 0, waiting = '', queue = Promise.resolve();

  const describe = (value) => {
    const made = {text: typeof value === 'string' ? value : util.inspect(value)};
    if (Buffer.isBuffer(value) && value.length > 8 && value.readUInt32BE(0) === 0x89504e47)
      made.png = value.toString('base64');
    try {
      const text = JSON.stringify(value);
      if (text !== undefined && text.length <= 1 << 20) made.json = JSON.parse(text);
    } catch {
      // no JSON: text says it all
    }
    return made;
  };
  globalThis.display = (...values) => { shown.push(...values.map(describe)); };
  globalThis.display.html = (html) => { shown.push({text: String(html), html: String(html)}); };

  // import() in a text needs what Node 20 calls experimental; that is nothing to tell a caller.
  const warn = process.emitWarning;
  process.emitWarning = (warning, ...more) => {
    if (!String(warning).includes('USE_MAIN_CONTEXT_DEFAULT_LOADER')) warn.call(process, warning, ...more);
  };

  const complain = (error) => {
    failed = true;
    process.stderr.write((error && error.stack ? error.stack : 'Uncaught ' + util.inspect(error)) + '\n');
  };
  process.on('uncaughtException', complain);
  process.on('unhandledRejection', complain);

  const evaluate = (code) => {
    const options = {
      filename: `cell${++count}.js`,
      importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER ?? ((name) => import(name)),
    };
    try {
      return vm.runInThisContext(code, options);
    } catch (error) {
      if (!(error instanceof SyntaxError) || !/\bawait\b/.test(code)) throw error;
    }
    // Top-level await: an expression first, so that it has a value.
    try {
      return new vm.Script(`(async () => (${code}\n))()`, options).runInThisContext();
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
    return vm.runInThisContext(`(async () => {${code}\n})()`, options);
  };

  const run = async (order) => {
    const answer = {exit_code: 0, result: null};
    shown = [];
    failed = false;
    try {
      const value = await evaluate(order.code);
      if (value !== undefined) {
        const made = describe(value);
        answer.result = made.text;
        shown.push(made);
      }
    } catch (error) {
      complain(error);
    }
    if (failed) answer.exit_code = 1;
    answer.results = shown;
    let text = JSON.stringify(answer);
    if (text.length > limit) {
      answer.result = answer.result === null ? null : answer.result.slice(0, 1 << 20);
      answer.results = [];
      answer.results_dropped = true;
      text = JSON.stringify(answer);
    }
    process.stdout.write(order.token);
    process.stderr.write(order.token);
    link.write(text + '\n');
  };

  link.setEncoding('utf8');
  link.on('data', (piece) => {
    waiting += piece;
    for (let at; (at = waiting.indexOf('\n')) >= 0; waiting = waiting.slice(at + 1)) {
      const order = JSON.parse(waiting.slice(0, at));
      queue = queue.then(() => run(order));
    }
  });
  link.on('close', () => process.exit(0));
})();
