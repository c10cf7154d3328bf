// Package v1alpha1 holds the resources of Q-TLS, in the API group qtls.dev.
//
// A field is here because it works: nothing is accepted and ignored.
//
// +kubebuilder:object:generate=true
// +groupName=qtls.dev
package v1alpha1
