package v1alpha1

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The rule that keeps a run what it was when it began names every field: one that is
// added has to be added to it too.
func TestOnlyCancelMayChangeInABenchmark(t *testing.T) {
	source, err := os.ReadFile("qtlsbenchmark_types.go")
	if err != nil {
		t.Fatal(err)
	}
	var rule string
	for line := range strings.Lines(string(source)) {
		if strings.Contains(line, "a QTLSBenchmark is immutable but for cancel") {
			rule = line
		}
	}
	spec := reflect.TypeFor[QTLSBenchmarkSpec]()
	for field := range spec.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if named := regexp.MustCompile(`\bself\.` + name + `\)? == (duration\()?oldSelf\.` + name + `\b`).MatchString(rule); named == (name == "cancel") {
			t.Errorf("spec.%s: in the rule of immutable fields: %v", name, named)
		}
	}
}
