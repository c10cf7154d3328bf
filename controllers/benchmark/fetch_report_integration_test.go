//go:build integration

package benchmark

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/testenv"
)

// What the page of benchmarks says fetches a report, and the command of the
// Makefile, do: of a usual report, and of one that has room only when compressed.
func TestTheDocumentedCommandsFetchAReport(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^kubectl get configmap scaling-report .*$`).FindAllString(string(page), -1)
	if len(commands) != 3 {
		t.Fatalf("commands %q", commands)
	}
	hack, err := filepath.Abs("../../hack/report")
	if err != nil {
		t.Fatal(err)
	}
	for name, notes := range map[string]int{"usual": 1, "large": 20_000} {
		w := newWorld(t)
		b := w.benchmark()
		r := report.Report{Version: report.Version, Name: "scaling", Gateway: "web"}
		for range notes {
			r.Notes = append(r.Notes, "This is a note of a run, which takes some room.")
		}
		files, err := r.Files()
		if err != nil {
			t.Fatal(err)
		}
		if _, plain := files["report.html"]; plain != (name == "usual") {
			t.Fatalf("%s: report.html is there: %v", name, plain)
		}
		files["report.md"] = []byte("# scaling\n") // the notes would be in it
		w.create(stored(b, files))
		want := map[string]string{"report.md": "# scaling\n"}
		text, err := r.JSON()
		if err != nil {
			t.Fatal(err)
		}
		want["report.json"] = string(text)
		if want["report.html"], err = r.HTML(); err != nil {
			t.Fatal(err)
		}
		for how, line := range map[string]string{"documented": strings.Join(commands, "\n"), "make report": hack + " " + w.namespace + "/scaling ."} {
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", line)
			cmd.Dir, cmd.Env = dir, testenv.Kubectl(t, w.namespace)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s, %s: %v\n%s", name, how, err, out)
			}
			for file, content := range want {
				if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != content {
					t.Errorf("%s, %s: %s has %d bytes, want %d (%v)", name, how, file, len(got), len(content), err)
				}
			}
		}
	}
	if out, err := exec.Command(hack, "scaling").CombinedOutput(); err == nil || !strings.Contains(string(out), "BENCHMARK=default/scaling") {
		t.Errorf("without a namespace: %v, %s", err, out)
	}
}
