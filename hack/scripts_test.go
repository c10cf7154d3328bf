// Package hack tests the scripts of this folder.
package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// run a script of this folder, with stand-ins for the programs that it calls: kubectl
// says what it would of the operators that there are, and makes no namespace; what
// the images are built from is called key. Unless the environment has it otherwise
// the cluster is not this machine's. What is returned is what was said, how each
// program was called, and the error that the script ended with.
func run(t *testing.T, name, operators string, env ...string) (said string, calls []string, err error) {
	t.Helper()
	dir := t.TempDir()
	const script = `#!/bin/sh
printf '%s %s\n' "$(basename "$0")" "$*" >>"$CALLS"
case "$*" in
"get deployments "*) printf '%s' "$OPERATORS" ;;
"get qtlspolicies measured "*) printf '%s' "$POLICY" ;;
"create namespace "*) exit 1 ;;
bin) dirname "$0" ;;
*" list -tars "*) printf '/cache/%s/key/qtls-%s-0.1.0.tar\n' gateway gateway operator operator ;;
esac
`
	for _, program := range []string{"kubectl", "helm", "go", "qtls-cluster"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "calls")
	cmd := exec.CommandContext(t.Context(), "./"+name)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "CALLS="+file, "OPERATORS="+operators,
		"POLICY=", "NAMESPACE=", "QTLS_CLUSTER=", "IMAGE_REGISTRY=registry.example.com", "PEER_IMAGES=")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	log, unread := os.ReadFile(file)
	if unread != nil {
		t.Fatal(unread)
	}
	return string(out), strings.Split(strings.TrimSpace(string(log)), "\n"), err
}

// changes are the calls that change a cluster.
func changes(calls []string) []string {
	return slices.DeleteFunc(calls, func(call string) bool { return strings.HasPrefix(call, "kubectl get ") })
}

func TestAClusterWithoutQTLSGetsIt(t *testing.T) {
	const another = " of namespace shop: [\"--serve\"]\nredis-18.1.0 of namespace shop: [\"--redis\"]\n"
	said, calls, err := run(t, "install", another)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if got := changes(calls); !slices.ContainsFunc(got, func(call string) bool {
		return strings.HasPrefix(call, "helm upgrade --install qtls charts/qtls ") && strings.Contains(call, "imageRegistry=registry.example.com")
	}) {
		t.Errorf("%q", got)
	}
}

// Images of this machine's cluster have the same tag whenever they are built.
func TestTheOperatorOfAnImageThatIsBuiltAnewIsStarted(t *testing.T) {
	said, calls, err := run(t, "install", "qtls-0.1.0 of namespace qtls-system: []\n", "QTLS_CLUSTER=qtls-cluster")
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if !slices.ContainsFunc(calls, func(call string) bool {
		return strings.HasPrefix(call, "helm upgrade --install qtls ") && strings.Contains(call, ` --set-string podAnnotations.qtls\.dev/image=key `)
	}) {
		t.Errorf("%q", calls)
	}
}

// It may be in production, with values that helm would drop.
func TestAQTLSThatIsThereStaysAsItIs(t *testing.T) {
	const there = "qtls-0.0.9 of namespace tls: [\"--leader-elect\",\"--peer-images=example.com/a:1,registry.example.com/qtls-nginx:*\"]\n"
	for _, peers := range []string{"", "registry.example.com/qtls-nginx:*"} {
		said, calls, err := run(t, "install", there, "PEER_IMAGES="+peers)
		if err != nil || !strings.Contains(said, "using qtls-0.0.9 of namespace tls, as it is\n") {
			t.Errorf("peers %q: %v: %s", peers, err, said)
		}
		if got := changes(calls); len(got) > 0 {
			t.Errorf("peers %q: %q", peers, got)
		}
	}
}

// It may serve some namespaces only, and there may be more than one.
func TestAQTLSThatIsThereHasToServeTheNamespace(t *testing.T) {
	const other = "qtls-0.0.9 of namespace tls: [\"--watch-namespaces=qtls-benches,shop\"]\n"
	said, calls, err := run(t, "install", other, "NAMESPACE=qtls-bench")
	if err == nil || !strings.Contains(said, "qtls-0.0.9 of namespace tls does not serve namespace qtls-bench: add that to its chart's value watchNamespaces") {
		t.Errorf("%v: %s", err, said)
	}
	if got := changes(calls); len(got) > 0 {
		t.Errorf("%q", got)
	}
	for _, operators := range []string{
		"qtls-0.0.9 of namespace b: []\n",
		"qtls-0.0.9 of namespace b: [\"--watch-namespaces=shop,qtls-bench\"]\n",
		other + "qtls-0.0.9 of namespace b: [\"--watch-namespaces=qtls-bench\",\"--leader-elect\"]\n",
	} {
		if said, _, err := run(t, "install", operators, "NAMESPACE=qtls-bench"); err != nil || !strings.Contains(said, "using qtls-0.0.9 of namespace b, as it is\n") {
			t.Errorf("%s%v: %s", operators, err, said)
		}
	}
	if said, _, err := run(t, "install", "qtls-0.0.9 of namespace qtls-bench: [\"--watch-namespaces=shop\"]\n", "NAMESPACE=qtls-bench"); err != nil {
		t.Errorf("its own: %v: %s", err, said)
	}
}

func TestAPeersImageHasToBeAllowedByWhoRunsIt(t *testing.T) {
	for _, args := range []string{`["--leader-elect"]`, `["--peer-images=example.com/a:1"]`} {
		said, calls, err := run(t, "install", "qtls-0.0.9 of namespace tls: "+args+"\n", "PEER_IMAGES=registry.example.com/qtls-nginx:*")
		if err == nil || !strings.Contains(said, "benchmarks.peerImages does not have registry.example.com/qtls-nginx:*") {
			t.Errorf("%s: %v: %s", args, err, said)
		}
		if got := changes(calls); len(got) > 0 {
			t.Errorf("%s: %q", args, got)
		}
	}
}

// What lies in its namespace goes with that. A policy lies in none.
func TestABenchmarkLeavesNoPolicyBehindButOneThatWasThere(t *testing.T) {
	for _, there := range []string{"", "qtlspolicy.qtls.dev/measured"} {
		said, calls, err := run(t, "bench", "qtls-0.0.9 of namespace tls: []\n", "BENCH=matrix", "REPLICAS=", "PRESET=", "POLICY="+there)
		if err == nil {
			t.Fatalf("without its namespace it did not stop: %s", said)
		}
		if removed := slices.Contains(calls, "kubectl delete qtlspolicies measured --ignore-not-found"); removed != (there == "") {
			t.Errorf("there was %q: %q", there, calls)
		}
	}
}
