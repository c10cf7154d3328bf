//go:build chart

package charts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func readInto(t *testing.T, name string, unmarshal func([]byte, any) error, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("qtls", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// property is as much of a JSON schema as values.schema.json uses for structure.
type property struct {
	Type                 string
	Properties           map[string]property
	AdditionalProperties any
}

// paths lists the values that the schema describes: those below a closed object.
func (p property) paths(prefix string) []string {
	if len(p.Properties) == 0 {
		return []string{prefix}
	}
	var all []string
	for name, child := range p.Properties {
		all = append(all, child.paths(strings.TrimPrefix(prefix+"."+name, "."))...)
	}
	return all
}

// valuePaths lists the values that values.yaml sets, down to where the schema
// describes them.
func valuePaths(values map[string]any, schema property, prefix string) []string {
	var all []string
	for name, value := range values {
		path := strings.TrimPrefix(prefix+"."+name, ".")
		child := schema.Properties[name]
		if nested, isMap := value.(map[string]any); isMap && len(child.Properties) > 0 {
			all = append(all, valuePaths(nested, child, path)...)
		} else {
			all = append(all, path)
		}
	}
	return all
}

func TestEveryValueIsInTheSchemaAndTheOtherWayRound(t *testing.T) {
	var schema property
	readInto(t, "values.schema.json", json.Unmarshal, &schema)
	values := map[string]any{}
	readInto(t, "values.yaml", func(data []byte, into any) error { return yaml.Unmarshal(data, into) }, &values)

	described := schema.paths("")
	described = slices.DeleteFunc(described, func(path string) bool { return path == "global" }) // Helm's own
	set := valuePaths(values, schema, "")
	for _, path := range set {
		if !slices.Contains(described, path) {
			t.Errorf("values.yaml sets %s, which values.schema.json does not describe", path)
		}
	}
	for _, path := range described {
		if !slices.Contains(set, path) {
			t.Errorf("values.schema.json describes %s, for which values.yaml has no default", path)
		}
	}
}

func TestEveryClosedPartOfTheSchemaRefusesUnknownNames(t *testing.T) {
	var check func(path string, p property)
	check = func(path string, p property) {
		if len(p.Properties) > 0 && p.AdditionalProperties != false {
			t.Errorf("%s: additionalProperties is %v", path, p.AdditionalProperties)
		}
		for name, child := range p.Properties {
			check(path+"."+name, child)
		}
	}
	var schema property
	readInto(t, "values.schema.json", json.Unmarshal, &schema)
	check("values", schema)
}

func TestEveryValueIsUsed(t *testing.T) {
	var schema property
	readInto(t, "values.schema.json", json.Unmarshal, &schema)
	paths, err := filepath.Glob(filepath.Join("qtls", "templates", "*"))
	if err != nil {
		t.Fatal(err)
	}
	var templates strings.Builder
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		templates.Write(data)
	}
	used := map[string]bool{}
	for _, m := range regexp.MustCompile(`\.Values\.([A-Za-z0-9.]+)`).FindAllStringSubmatch(templates.String(), -1) {
		used[m[1]] = true
	}
	// An image is handed to qtls.image whole; which reads these of it.
	for _, image := range []string{"image", "gatewayImage", "redisImage", "hsmImage", "k6Image"} {
		if used[image] {
			for _, field := range []string{"repository", "tag", "digest"} {
				used[image+"."+field] = true
			}
		}
	}
	for _, path := range schema.paths("") {
		if path != "global" && !used[path] {
			t.Errorf("%s is accepted and ignored", path)
		}
	}
}
