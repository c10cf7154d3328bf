package dataplane

import (
	"maps"
	"strings"
	"testing"
)

func TestLibrariesOfAPod(t *testing.T) {
	if all, err := ParseLibraries(""); err != nil || len(all) != 0 {
		t.Errorf("a pod without: %v, %v", all, err)
	}
	got, err := ParseLibraries(`{"a":{"module":"/opt/lib.so","token":"gw 1#2"},"b":{"module":"/opt/lib.so","serial":"42"}}`)
	if want := (Libraries{"a": {Module: "/opt/lib.so", Token: "gw 1#2"}, "b": {Module: "/opt/lib.so", Serial: "42"}}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	// They are written into a configuration of lines.
	for name, text := range map[string]string{
		"not JSON":                   `a=/opt/lib.so`,
		"a line break":               `{"a":{"module":"/opt/lib.so","token":"gw\nmodule = /x"}}`,
		"a line break in the member": `{"a\n[key x]":{"module":"/opt/lib.so","token":"gw"}}`,
		"a relative path":            `{"a":{"module":"lib.so","token":"gw"}}`,
		"no token":                   `{"a":{"module":"/opt/lib.so"}}`,
		"two":                        `{"a":{"module":"/opt/lib.so","token":"gw","serial":"42"}}`,
		"a label with a comment":     `{"a":{"module":"/opt/lib.so","token":"HSM #2"}}`,
		"a label that is a comment":  `{"a":{"module":"/opt/lib.so","token":"#1"}}`,
		"a number with a comment":    `{"a":{"module":"/opt/lib.so","serial":"42 #2"}}`,
		"a number that is a comment": `{"a":{"module":"/opt/lib.so","serial":"#42"}}`,
		"a path with a comment":      `{"a":{"module":"/opt/a #b/lib.so","token":"gw"}}`,
	} {
		if all, err := ParseLibraries(text); err == nil || !strings.Contains(err.Error(), LibrariesEnvironment) {
			t.Errorf("%s: %v, %v", name, all, err)
		}
	}
}
