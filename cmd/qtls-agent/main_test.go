package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"qtls.dev/qtls/internal/version"
)

func TestCommandLine(t *testing.T) {
	t.Setenv("POD_NAME", "")
	t.Setenv("POD_NAMESPACE", "")
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"version", 0, version.Version, ""},
		{"help", 0, "Usage:", ""},
		{"", exitUsage, "", "Usage:"},
		{"start", exitUsage, "", `no command "start"`},
		{"run --namespace shop --gateway web", exitUsage, "", "--pod is needed"},
		{"run --namespace shop --gateway web --pod web-1 now", exitUsage, "", `unexpected argument "now"`},
		{"run --nonsense", exitUsage, "", "-nonsense"},
		{"run -h", 0, "", "name of the gateway"},
		{"run --namespace shop --gateway web --pod web-1", exitFailed, "", "in-cluster configuration"},
		{"haproxy -W", exitUsage, "", "-W"},
		{"drain --delay 5", exitUsage, "", "delay"},
		{"drain --delay -5s", exitUsage, "", "not below 0s"},
	} {
		t.Run(c.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := command(t.Context(), strings.Fields(c.args), &stdout, &stderr); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
			}
		})
	}
}

const limitOfTest = "QTLS_TEST_MEMORY_LIMIT"

// What a process limits, it limits for good: this one becomes a shell that tells.
func TestMain(m *testing.M) {
	if memory, set := os.LookupEnv(limitOfTest); set {
		if err := limitDescriptors(memory); err != nil {
			fmt.Println(err)
		}
		fmt.Println(syscall.Exec("/bin/sh", []string{"sh", "-c", "ulimit -Sn; ulimit -Hn"}, nil))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestHAProxyHasTheDescriptorsThatItsMemoryIsFor(t *testing.T) {
	var own syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	told := func(memory string) []string {
		t.Helper()
		c := exec.Command("/proc/self/exe")
		c.Env = []string{limitOfTest + "=" + memory}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Fields(string(out))
	}
	want := fmt.Sprint(min(own.Max, 19660))
	if got := told("1073741824"); len(got) != 2 || got[0] != want || got[1] != want {
		t.Errorf("with 1 GiB of memory the limits are %q, want %s", got, want)
	}
	for _, unknown := range []string{"", "1Gi"} {
		got := told(unknown)
		if hard := got[len(got)-1]; hard != "unlimited" && hard != fmt.Sprint(own.Max) {
			t.Errorf("memory %q: the limit is %s, want what it was: %d", unknown, hard, own.Max)
		}
	}
}
