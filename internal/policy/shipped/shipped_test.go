package shipped

import (
	"slices"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
)

func TestEachFileHoldsThePolicyOfItsName(t *testing.T) {
	policies, err := Policies()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range policies {
		names = append(names, p.Name)
		if _, err := files.ReadFile(p.Name + ".yaml"); err != nil {
			t.Errorf("policy %q does not lie in a file of its name: %v", p.Name, err)
		}
		if p.Kind != "QTLSPolicy" || p.APIVersion != v1alpha1.GroupVersion.String() {
			t.Errorf("policy %q is a %s of %s", p.Name, p.Kind, p.APIVersion)
		}
		if p.Spec.Description == "" {
			t.Errorf("policy %q does not say whom it is for", p.Name)
		}
	}
	if want := []string{"cnsa2-v1", "compatible-v1", "hybrid-v1", "kpqc-v1", "pqc-only-v1"}; !slices.Equal(names, want) {
		t.Errorf("shipped are %v, want %v", names, want)
	}
}
