package v1alpha1

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// What the PKCS #11 module takes and tells (crypto/pkcs11) is what HSMPools may
// say: it is written in Rust, in markers and in Go, and nothing else compares
// them.
func TestHSMPoolsAreWhatTheModuleTakes(t *testing.T) {
	pool := schemaOf(t, "../../config/crd/qtls.dev_hsmpools.yaml")
	rust := func(file, pattern string) string {
		t.Helper()
		source, err := os.ReadFile("../../crypto/pkcs11/src/" + file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindSubmatch(source)
		if m == nil {
			t.Fatalf("crypto/pkcs11/src/%s has nothing like %s", file, pattern)
		}
		return string(m[1])
	}

	members := pool.Properties["spec"].Properties["members"]
	if most := rust("config.rs", `const MOST_MEMBERS: usize = (\d+);`); strconv.FormatInt(*members.MaxItems, 10) != most {
		t.Errorf("the API has %d members at most, the module %s", *members.MaxItems, most)
	}
	if most := rust("config.rs", `const MOST_SESSIONS: usize = (\d+);`); strconv.Itoa(MostHSMSessions) != most {
		t.Errorf("MostHSMSessions is %d, the module has %s", MostHSMSessions, most)
	}
	sessions := bounded("sessions", *members.Items.Schema)
	if len(sessions) == 0 {
		t.Error("no kind of member has sessions")
	}
	for _, s := range sessions {
		if *s.Maximum != MostHSMSessions {
			t.Errorf("a member may have %v sessions; MostHSMSessions is %d", *s.Maximum, MostHSMSessions)
		}
	}

	var states []string
	for _, state := range pool.Properties["status"].Properties["members"].Items.Schema.Properties["state"].Enum {
		var s string
		if err := json.Unmarshal(state.Raw, &s); err != nil {
			t.Fatal(err)
		}
		if s != string(HSMMemberUnknown) { // of a daemon that gives no answer: no daemon says that
			states = append(states, s)
		}
	}
	told := regexp.MustCompile(`(?m)^    (\w+),$`).FindAllStringSubmatch(rust("member.rs", `(?s)pub enum State \{\n(.*?)\n\}`)+"\n", -1)
	var names []string
	for _, m := range told {
		names = append(names, m[1])
	}
	slices.Sort(states)
	slices.Sort(names)
	if !slices.Equal(states, names) {
		t.Errorf("the API has the states %q, the module tells %q", states, names)
	}
	ours := []string{string(HSMMemberDown), string(HSMMemberStarting), string(HSMMemberUp)}
	if !slices.Equal(ours, names) {
		t.Errorf("Go has the states %q, the module tells %q", ours, names)
	}
}

// schemaOf the only version of a definition.
func schemaOf(t *testing.T, path string) apiextensionsv1.JSONSchemaProps {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &definition); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return *definition.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// bounded are the schemas of fields of a name, at any depth.
func bounded(name string, in apiextensionsv1.JSONSchemaProps) (found []apiextensionsv1.JSONSchemaProps) {
	for field, schema := range in.Properties {
		if field == name {
			found = append(found, schema)
		}
		found = append(found, bounded(name, schema)...)
	}
	return found
}
