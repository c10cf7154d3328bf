//go:build integration

package benchmark

import (
	"encoding/base64"
	"math/rand/v2"
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
// Makefile, do: of a usual report, of one that has room only when compressed, and of
// one whose page has a ConfigMap of its own. The latter does of one that an earlier
// operator stored, too.
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
	random := make([]byte, 600<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random) // never fails
	for name, c := range map[string]struct {
		note    string
		maps    int
		plain   bool
		earlier bool
	}{
		"usual":   {"a note", 1, true, false},
		"earlier": {"a note", 1, true, true},
		"large":   {strings.Repeat("This is a note of a run, which takes some room. ", 40_000), 1, false, false},
		"huge":    {base64.StdEncoding.EncodeToString(random), 3, false, false},
	} {
		w := newWorld(t)
		b := w.benchmark()
		r := report.Report{Version: report.Version, Name: "scaling", Gateway: "web", Notes: []string{c.note}}
		places, err := r.Files()
		if err != nil {
			t.Fatal(err)
		}
		if _, plain := places[""][report.HTMLFile]; plain != c.plain || len(places) != c.maps {
			t.Fatalf("%s: %d ConfigMaps, report.html is there: %v", name, len(places), plain)
		}
		if c.earlier {
			delete(places[""], report.MarkdownFile+report.Compressed)
		}
		for ending, files := range places {
			w.create(stored(b, ending, files))
		}
		want := map[string]string{"report.md": r.Markdown()}
		text, err := r.JSON()
		if err != nil {
			t.Fatal(err)
		}
		want["report.json"] = string(text)
		if want["report.html"], err = r.HTML(); err != nil {
			t.Fatal(err)
		}
		how := map[string]string{"make report": hack + " " + w.namespace + "/scaling ."}
		if !c.earlier {
			how["documented"] = strings.Join(commands, "\n")
		}
		for how, line := range how {
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
	w := newWorld(t)
	cmd := exec.CommandContext(t.Context(), hack, w.namespace+"/scaling", t.TempDir())
	cmd.Env = testenv.Kubectl(t, w.namespace)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), `configmaps "scaling-report" not found`) {
		t.Errorf("without a report: %v, %s", err, out)
	}
	if out, err := exec.Command(hack, "scaling").CombinedOutput(); err == nil || !strings.Contains(string(out), "BENCHMARK=default/scaling") {
		t.Errorf("without a namespace: %v, %s", err, out)
	}
}
