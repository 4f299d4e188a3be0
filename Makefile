# A front for meson: `make run` builds everything and serves, `make test` runs every test.

BUILD ?= build
PORT ?= 9000
PTY_PORT ?= 9001
BASE ?= sandbox

.PHONY: all build run test bench dist dist-arm64 install clean

all: build

$(BUILD)/build.ninja:
	scripts/setup.sh build
	meson setup $(BUILD) -Dtests=false

build: $(BUILD)/build.ninja
	ninja -C $(BUILD)

run: build
	mkdir -p $(BASE)
	$(BUILD)/server/abx-server serve --host 127.0.0.1 --port $(PORT) --pty-port $(PTY_PORT) \
		--base-dir $(BASE) --commands templates/python-hello/commands.c

test:
	scripts/setup.sh test
	scripts/test.py

bench: build
	tests/bench/run.sh

dist:
	scripts/setup.sh dist
	scripts/dist.sh

# Beside what `make dist` gave, for 64-bit Arm.
dist-arm64:
	scripts/setup.sh dist arm64
	CROSS=aarch64-linux-gnu scripts/dist.sh

install: build
	meson install -C $(BUILD)

clean:
	rm -rf build build-asan build-tsan build-dist build-dist-* build-image dist
