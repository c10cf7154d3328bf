package main

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A suite is a set of steps that are counted together.
type suite struct {
	name    string
	prepare []preparation
	steps   []step
	// byName keeps it out of a run of everything.
	byName bool
	// cluster has it use the machine's cluster, of which there is one, and wait for
	// most of its time: such suites run one after the other, beside those without.
	cluster bool
	// notBefore names a suite: when that is chosen too, this one, of a cluster,
	// begins when that does at the earliest.
	notBefore string
}

// A preparation is what a suite needs before its first step: a command whose
// output, a path, the steps find in an environment variable.
type preparation struct {
	name     string
	variable string // empty: the output is not needed
	suffix   string // appended to the output
	command  []string
}

// A step is one command: a check that counts as one test, or a run of tests that
// are counted one by one.
type step struct {
	name    string
	command []string
	// tests reads the output of a run of tests; nil for a check.
	tests testReader
	// env is added to the environment.
	env []string
	// eachTest shows every test of a `go test` as it ends, for slow ones.
	eachTest bool
	// beside has it run while the steps after it do, for one that waits for most
	// of its time.
	beside  bool
	timeout time.Duration
}

var (
	cluster     = filepath.Join("bin", "qtls-cluster")
	gatewayRoot = preparation{name: "gateway root file system", variable: "QTLS_GATEWAY_ROOTFS", command: []string{"go", "-C", "hack/images", "run", ".", "rootfs", "gateway"}}
	redisRoot   = preparation{name: "redis root file system", variable: "QTLS_REDIS_ROOTFS", command: []string{"go", "-C", "hack/images", "run", ".", "rootfs", "redis"}}
	images      = preparation{name: "images", command: []string{"go", "-C", "hack/images", "run", ".", "build"}}
	provider    = preparation{name: "OpenSSL provider", variable: "QTLS_PROVIDER", command: []string{"go", "-C", "hack/images", "run", ".", "provider"}}
	hsmd        = preparation{name: "hsmd", variable: "QTLS_HSMD", command: []string{"go", "-C", "hack/images", "run", ".", "hsmd"}}
	kryoptic    = preparation{name: "kryoptic", variable: "QTLS_HSM_MODULE", command: []string{"go", "-C", "hack/images", "run", ".", "kryoptic"}}
	pkcs11      = preparation{name: "PKCS#11 module", variable: "QTLS_PKCS11_MODULE", command: []string{"go", "-C", "hack/images", "run", ".", "pkcs11"}}
	k6Program   = preparation{name: "load generator", variable: "QTLS_K6", command: []string{"go", "-C", "hack/images", "run", ".", "program", "qtls-k6"}}
	helm        = preparation{name: "helm", variable: "HELM", suffix: "/helm", command: []string{cluster, "bin"}}
	chromium    = preparation{name: "Chromium", command: []string{"hack/deps", "browser"}}
	assets      = preparation{name: "kube-apiserver and etcd", variable: "KUBEBUILDER_ASSETS", command: []string{cluster, "assets"}}
)

// settings come from the environment.
type settings struct {
	// e2e is a regular expression that narrows the end-to-end tests; the
	// quickstart is left out then.
	e2e string
	// fuzzTime is how long each fuzz target runs.
	fuzzTime time.Duration
}

// suites is the table of all tests.
func suites(set settings) []suite {
	return []suite{
		{name: "lint", steps: []step{
			check("generated files are up to date", "make", "--silent", "verify"),
			check("golangci-lint", "make", "--silent", "lint-go"),
			check("shellcheck", "make", "--silent", "lint-shell"),
			check("no path of a machine", "make", "--silent", "lint-paths"),
			check("rustfmt and clippy", "make", "--silent", "lint-rust"),
		}},
		{name: "unit", prepare: []preparation{gatewayRoot, redisRoot, provider, hsmd, kryoptic}, steps: []step{
			// More packages than processors: some wait for time-outs, and those that do so for longest begin first.
			goTest(".", "-race", "-p=4", "./internal/ticketstore", "./internal/rings", "./..."),
			goTest("hack/cluster", "./..."),
			goTest("hack/images", "./..."),
			goTest("e2e/probe", "./..."),
		}},
		{name: "integration", prepare: []preparation{assets, gatewayRoot, redisRoot, provider, hsmd, kryoptic}, steps: []step{
			goTest(".", append([]string{"-tags=integration", "-p=4"}, packagesWithTag("integration")...)...), // they wait for most of their time
		}},
		{name: "fuzz", steps: fuzzing(set.fuzzTime)},
		{name: "chart", prepare: []preparation{helm}, steps: []step{
			goTest(".", "-tags=chart", "./charts/..."),
		}},
		{name: "cluster", cluster: true, notBefore: "unit", steps: []step{smoke}},
		{name: "browser", prepare: []preparation{chromium}, steps: []step{
			goTest(".", append([]string{"-count=1", "-tags=browser", "-run=InABrowser"}, packagesWithTag("browser")...)...),
		}},
		{name: "crypto", prepare: []preparation{images, gatewayRoot, redisRoot, provider, hsmd, kryoptic, pkcs11, k6Program}, steps: []step{
			check("gateway image", "go", "-C", "hack/images", "run", ".", "verify", "gateway"),
			check("operator image", "go", "-C", "hack/images", "run", ".", "verify", "operator"),
			check("redis image", "go", "-C", "hack/images", "run", ".", "verify", "redis"),
			check("hsm image", "go", "-C", "hack/images", "run", ".", "verify", "hsm"),
			check("k6 image", "go", "-C", "hack/images", "run", ".", "verify", "k6"),
			check("nginx image", "go", "-C", "hack/images", "run", ".", "verify", "nginx"),
			check("client images", "go", "-C", "hack/images", "run", ".", "verify", "client"),
			beside(goTest(".", append([]string{"-count=1", "-tags=crypto"}, packagesWithTag("crypto")...)...)), // time-outs of HAProxy and others
			k6Test,
			cargoTest("cargo test of the provider", "--package=oqsprovider"),
			cargoTest("cargo test of its tools", "--workspace", "--exclude=oqsprovider"),
			check("the KpqC cases with the gateway's HAProxy", "go", "-C", "hack/images", "run", ".", "handshake", "demo", "--seconds", "2"),
			check("the fast path in the gateway's HAProxy", "go", "-C", "hack/images", "run", ".", "handshake", "cost", "--rounds", "2", "--handshakes", "20"),
			check("keys in HSMs with the gateway's HAProxy", "go", "-C", "hack/images", "run", ".", "handshake", "hsm", "--rounds", "1", "--handshakes", "20", "--seconds", "1"),
			check("resumption in the gateway's HAProxy", "go", "-C", "hack/images", "run", ".", "handshake", "resumption", "--rounds", "2", "--handshakes", "20"),
		}},
		{name: "e2e", cluster: true, notBefore: "crypto", prepare: []preparation{images, helm}, steps: endToEnd(set.e2e)},
		{name: "asan", byName: true, prepare: []preparation{asanProvider}, steps: []step{
			asanTest("the provider with AddressSanitizer", slices.Concat([]string{"--package=oqsprovider", "--", "--show-output"}, notWithASan)...),
			// It keeps variables off the stack, by whose address a job's stack is found.
			asanTest("the PKCS#11 module with AddressSanitizer", "--package=qtls-pkcs11", "--", "--show-output", "--skip=the_stack_of_a_job_that_is_abandoned"),
			asanTest("hsmd with AddressSanitizer", slices.Concat([]string{"--package=qtls-hsmd", "--", "--show-output"}, notWithASan)...),
			check("the KpqC cases with AddressSanitizer", "go", "-C", "hack/images", "run", ".", "asan", "handshake", "demo", "--handshakes", "50", "--seconds", "2"),
			check("keys in HSMs with AddressSanitizer", "go", "-C", "hack/images", "run", ".", "asan", "handshake", "hsm", "--rounds", "1", "--handshakes", "20", "--seconds", "1"),
			check("the fast path with AddressSanitizer", "go", "-C", "hack/images", "run", ".", "asan", "handshake", "cost", "--rounds", "1", "--handshakes", "20"),
		}},
	}
}

// asanProvider compiles the module that its tests load.
var asanProvider = preparation{
	name:    "OpenSSL provider with AddressSanitizer",
	command: []string{"go", "-C", "hack/images", "run", ".", "asan", "cargo", "build", "--release", "--locked", "--package=oqsprovider"},
}

// notWithASan are tests of the provider, and of hsmd, that AddressSanitizer makes no sense of.
var notWithASan = []string{
	// It keeps variables of functions elsewhere, and apart: a stack's size is not the product's.
	"--skip=stack",
	// It keeps what was freed from being used again: the memory of a process says nothing of leaks.
	"--skip=gives_everything_back", "--skip=leave_nothing",
	// qemu-user, and valgrind, leave its shadow memory no place.
	"--skip=without_avx", "--skip=valgrind",
}

// forTests keeps the tests' cluster apart from one that a person has up.
var (
	forTests = []string{"QTLS_CLUSTER_STATE=/var/lib/qtls-cluster-test"}
	port     = "--port=16444"
)

// smoke breaks nodes of the local cluster, and looks for what is left when it is
// down. It skips itself where a person's cluster would be in the way.
var smoke = step{
	name: "hack/cluster/smoke", tests: readGoTest, eachTest: true, timeout: hangs, env: []string{"QTLS_CLUSTER_SMOKE=1"},
	command: []string{"go", "-C", "hack/cluster", "test", "-json", "-count=1", "-timeout=50m", "./smoke"},
}

// onCluster runs a command on a cluster of its own.
func onCluster(s step, nodes string, command ...string) step {
	s.env = append(s.env, forTests...)
	s.command = append([]string{cluster, "run", port, "--nodes=" + nodes, "--"}, command...)
	return s
}

func endToEnd(pattern string) []step {
	tests := onCluster(step{name: "e2e", tests: readGoTest, eachTest: true, timeout: 65 * time.Minute}, "3",
		"go", "test", "-json", "-count=1", "-timeout=60m", "-parallel=4", "-tags=e2e", "-run="+cmp.Or(pattern, "."), "./e2e")
	if pattern != "" {
		return []step{tests}
	}
	quickstart := onCluster(check("quickstart"), "1", "hack/quickstart")
	quickstart.env = append(quickstart.env, "QTLS_CLUSTER="+cluster)
	return []step{quickstart, tests}
}

// hangs is after how long a step is taken to hang: not before a slow and busy
// machine, which compiles all of it first, is done.
const hangs = time.Hour

func check(name string, command ...string) step {
	return step{name: name, command: command, timeout: hangs}
}

func goTest(module string, args ...string) step {
	return step{
		name: "go test " + module, tests: readGoTest, timeout: hangs,
		command: append([]string{"go", "-C", module, "test", "-json", "-timeout=50m"}, args...),
	}
}

// cargoTest runs tests of crypto/, also those that are ignored elsewhere: what they
// need is there. With --release and the provider by itself they
// share what was compiled for it: with other crates at its side cargo chooses other
// features for its dependencies, and compiles liboqs again.
func cargoTest(name string, packages ...string) step {
	command := []string{"go", "-C", "hack/images", "run", ".", "cargo", "--", "test", "--release", "--locked", "--no-fail-fast"}
	return step{
		name: name, tests: readCargoTest, timeout: hangs,
		command: slices.Concat(command, packages, []string{"--", "--show-output", "--include-ignored"}),
	}
}

// beside has a step run while those after it do.
func beside(s step) step {
	s.beside = true
	return s
}

// asanTest is the same with AddressSanitizer.
func asanTest(name string, args ...string) step {
	command := []string{"go", "-C", "hack/images", "run", ".", "asan", "cargo", "test", "--release", "--locked", "--no-fail-fast"}
	return step{name: name, tests: readCargoTest, timeout: hangs, command: slices.Concat(command, args)}
}

// k6Test tests k6/ where its OpenSSL is.
var k6Test = step{
	name: "go test k6", tests: readGoTest, timeout: hangs,
	command: []string{"go", "-C", "hack/images", "run", ".", "k6", "test", "-json", "-count=1", "-timeout=50m", "-p=1", "./..."},
}

// fuzzTarget finds the targets in a test file.
var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// fuzzing has a step for each fuzz target.
func fuzzing(each time.Duration) []step {
	var steps []step
	eachTestFile(func(dir, content string) {
		for _, m := range fuzzTarget.FindAllStringSubmatch(content, -1) {
			s := check(dir+" "+m[1], "go", "-C", dir, "test", "-vet=off", "-run=^$", "-fuzz=^"+m[1]+"$", "-fuzztime="+each.String(), ".")
			s.timeout += each
			steps = append(steps, s)
		}
	})
	return steps
}

// packagesWithTag are the folders with test files that only the build tag lets
// in: other packages would be tested twice.
func packagesWithTag(tag string) []string {
	var found []string
	eachTestFile(func(dir, content string) {
		if strings.HasPrefix(content, "//go:build "+tag+"\n") {
			found = append(found, dir)
		}
	})
	slices.Sort(found)
	return slices.Compact(found)
}

// eachTestFile calls do with each test file below the working folder: with its
// folder, as `go test` takes it, and its content.
func eachTestFile(do func(dir, content string)) {
	_ = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return nil // an unreadable folder has no tests that could be run
		}
		if data, err := os.ReadFile(path); err == nil {
			do("./"+filepath.Dir(path), string(data))
		}
		return nil
	})
}
