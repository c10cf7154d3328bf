package reference

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// words are what the pattern's group matches in a file of the root.
func words(t *testing.T, file, pattern string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(data), -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func TestCommandsOfTheReadmesAreThere(t *testing.T) {
	targets := words(t, "Makefile", `(?m)^([a-z-]+):`)
	const command = "`make ([a-z-]+)"
	english, korean := words(t, "README.md", command), words(t, "README.ko.md", command)
	if !slices.Equal(english, korean) {
		t.Errorf("the readmes name different commands: %q and %q", english, korean)
	}
	if len(english) == 0 {
		t.Fatal("README.md names no command")
	}
	for _, name := range english {
		if !slices.Contains(targets, name) {
			t.Errorf("README.md names `make %s`, which the Makefile does not have", name)
		}
	}
}

func TestReadmesShowTheSameOutput(t *testing.T) {
	block := `(?s)(installing charts/qtls.*?)` + "```"
	english, korean := words(t, "README.md", block), words(t, "README.ko.md", block)
	if len(english) != 1 || !slices.Equal(english, korean) {
		t.Errorf("README.md shows %q, README.ko.md %q", english, korean)
	}
}
