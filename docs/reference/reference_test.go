// Package reference holds the reference pages to the code.
package reference

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	root = filepath.Join("..", "..")
	// row is a table's row that explains a name, with its other cells.
	row = regexp.MustCompile("(?m)^\\| `([A-Za-z_]+)` \\|(.*)\\|$")
)

// explained are the names that a page's tables explain below a heading, with
// the cells beside them.
func explained(t *testing.T, page, below string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(data), below)
	if !found {
		t.Fatalf("%s has no heading %q", page, below)
	}
	all := map[string][]string{}
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		if _, twice := all[m[1]]; twice {
			t.Errorf("%s explains %s twice", page, m[1])
		}
		var cells []string
		for cell := range strings.SplitSeq(m[2], "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		all[m[1]] = cells
	}
	return all
}

// reasons are the constants of api/v1alpha1/conditions.go, by name.
func reasons(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "api", "v1alpha1", "conditions.go"), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		all[spec.Names[0].Name] = value
		return true
	})
	if len(all) == 0 {
		t.Fatal("there are no reasons")
	}
	return all
}

func TestEachConditionReasonIsExplainedOnceWithItsRemedy(t *testing.T) {
	page := explained(t, "conditions.md", "## Of several kinds")
	fine := []string{"Ready", "Accepted", "ResolvedRefs", "Programmed", "Issued", "Shared", "Completed", "PointsValid", "PeersCompared", "ThresholdsPassed", "NotWorse", "Better", "Same", "Restored", "LeftAsChanged", "Scheduled"}
	known := map[string]bool{}
	for _, reason := range reasons(t) {
		known[reason] = true
		cells, there := page[reason]
		switch {
		case !there:
			t.Errorf("conditions.md does not explain %s", reason)
		case len(cells) != 2 || cells[0] == "" || cells[1] == "" && !slices.Contains(fine, reason):
			t.Errorf("conditions.md: %s has no cause or no remedy: %q", reason, cells)
		}
	}
	for reason := range page {
		if !known[reason] {
			t.Errorf("conditions.md explains %s, which no condition has", reason)
		}
	}
}

// sources calls do with the content of each Go file below a folder that is no
// test.
func sources(t *testing.T, folder string, do func(content string)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		do(string(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEachConditionReasonIsGivenBySomebody(t *testing.T) {
	var code strings.Builder
	for _, folder := range []string{"controllers", "internal"} {
		sources(t, folder, func(content string) { code.WriteString(content) })
	}
	for name := range reasons(t) {
		if !regexp.MustCompile(`v1alpha1\.` + name + `\b`).MatchString(code.String()) {
			t.Errorf("no condition ever has the reason %s", name)
		}
	}
}

func TestEachMetricIsExplainedOnce(t *testing.T) {
	page := explained(t, "metrics.md", "## Of a gateway pod")
	defined := map[string]bool{}
	name := regexp.MustCompile(`"(qtls_[a-z_]+)"`)
	for _, folder := range []string{"controllers", "internal", "cmd"} {
		sources(t, folder, func(content string) {
			for _, m := range name.FindAllStringSubmatch(content, -1) {
				defined[m[1]] = true
			}
		})
	}
	if len(defined) == 0 {
		t.Fatal("there are no metrics")
	}
	for metric := range defined {
		if len(page[metric]) != 2 || page[metric][1] == "" {
			t.Errorf("metrics.md does not explain %s", metric)
		}
	}
	for metric := range page {
		if strings.HasPrefix(metric, "qtls_") && !defined[metric] { // alerts are the chart's, and its tests'
			t.Errorf("metrics.md explains %s, which nothing counts", metric)
		}
	}
}

// mapValues are the string values of package-level maps of a file, by the maps'
// names.
func mapValues(t *testing.T, file string, names ...string) map[string]bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !slices.Contains(names, spec.Names[0].Name) {
			return true
		}
		for _, entry := range spec.Values[0].(*ast.CompositeLit).Elts {
			value, err := strconv.Unquote(entry.(*ast.KeyValueExpr).Value.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all[value] = true
		}
		return false
	})
	if len(all) == 0 {
		t.Fatalf("%s has no %q", file, names)
	}
	return all
}

func TestEachReasonOfAFailedHandshakeIsNamed(t *testing.T) {
	cell := explained(t, "metrics.md", "## Of a gateway pod")["qtls_handshake_failures_total"][1]
	counted := mapValues(t, filepath.Join("internal", "agent", "handshakes.go"), "failureReasons", "errorReasons")
	counted["other"] = true
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cell, -1) {
		named[m[1]] = true
		if !counted[m[1]] {
			t.Errorf("metrics.md names the reason %s, which nothing counts", m[1])
		}
	}
	for reason := range counted {
		if !named[reason] {
			t.Errorf("metrics.md does not name the reason %s of qtls_handshake_failures_total", reason)
		}
	}
}

func TestEachFolderIsInTheMapOfTheArchitecture(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(data), "## Where things are")
	if !found {
		t.Fatal("architecture.md has no table of folders")
	}
	// A row names folders in full, or by the last part where the one before has the rest.
	named := map[string]bool{}
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		parent := ""
		for _, m := range regexp.MustCompile("`([a-z0-9/]+)`").FindAllStringSubmatch(cells[1], -1) {
			if i := strings.LastIndex(m[1], "/"); i >= 0 {
				parent = m[1][:i+1]
				named[m[1]] = true
			} else {
				named[parent+m[1]] = true
			}
		}
	}
	for _, parent := range []string{"controllers", "internal", filepath.Join("internal", "bench")} {
		folders, err := os.ReadDir(filepath.Join(root, parent))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range folders {
			if path := filepath.ToSlash(filepath.Join(parent, f.Name())); f.IsDir() && path != "internal/bench" && !named[path] {
				t.Errorf("architecture.md does not say what lives in %s", path)
			}
		}
	}
	for path := range named {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(path))); err != nil {
			t.Errorf("architecture.md names %s, which is not there", path)
		}
	}
}
