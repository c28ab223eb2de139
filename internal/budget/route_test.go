// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	_ "embed"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/budget"
)

//go:embed testdata/routes.txt
var publicAPIs string

// For the APIs in testdata/routes.txt, the segment that names a route keeps nine in ten
// routes together whatever the ids in their paths, and 24 of 25 pairs of routes apart.
func TestRouteOf_PublicAPIs(t *testing.T) {
	id := regexp.MustCompile(`\{(.*?)\|(.*?)\}`)
	ids, together, pairs, apart := 0, 0, 0, 0
	var service []uint32 // its routes so far
	for line := range strings.Lines(publicAPIs) {
		method, path, ok := strings.Cut(strings.TrimSpace(line), " /")
		if !ok {
			service = nil
			continue
		}
		route := func(value string) uint32 {
			return budget.RouteOf(method, "/"+id.ReplaceAllString(path, value))
		}
		one := route("$1")
		if strings.Contains(path, "{") {
			if ids++; one == route("$2") {
				together++
			}
		}
		for _, other := range service {
			if pairs++; one != other {
				apart++
			}
		}
		service = append(service, one)
	}
	t.Logf("%d of %d routes stay together, %d of %d pairs are apart", together, ids, apart, pairs)
	assert.Greater(t, ids, 140)
	assert.GreaterOrEqual(t, together, ids*88/100)
	assert.GreaterOrEqual(t, apart, pairs*95/100)
}

func TestRouteOf(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/orders/17":                      "orders",
		"/v2/library/nginx/manifests/latest":     "library",
		"/rest/api/3/issue/PROJ-1":               "issue",
		"/apis/apps/v1/namespaces/x/deployments": "apps",
		"/2010-04-01/Accounts/AC3/Messages.json": "Accounts",
		"//orders":                               "orders",
		"/pkg.Service/Method":                    "pkg.Service",
		"/pkg.v1.Service/Method":                 "Method",
		"/graphql":                               "graphql",
		"/1/2/3/4/orders":                        "",
		"/v2/":                                   "",
		"/":                                      "",
		"":                                       "",
		"*":                                      "*",
	} {
		assert.Equal(t, budget.RouteOf("GET", "/"+want), budget.RouteOf("GET", path), path)
	}
	assert.NotEqual(t, budget.RouteOf("GET", "/orders"), budget.RouteOf("PUT", "/orders"))
	assert.Equal(t, budget.RouteOf("GET", "/orders/1"), budget.RouteOf("GET", "/api/v2/orders"))
	assert.NotPanics(t, func() { budget.RouteOf("", strings.Repeat("a1/", 100_000)) })
}

func TestRouteText(t *testing.T) {
	assert.Equal(t, "GET /orders", budget.RouteText("GET", "/api/v1/orders/17"))
	assert.Equal(t, "GET /", budget.RouteText("GET", "/17"))
	assert.Equal(t, "GET /x%2CGET%20%3Cb%3E%0A%00%FF", budget.RouteText("GET", "/x,GET <b>\n\x00\xff/orders"))
	assert.Len(t, budget.RouteText("GET", "/"+strings.Repeat("x", 1<<20)), 60)
}

// Eight routes that fail have rows of their own. More share them, and the rest of the host
// with them.
func TestDebt_Routes(t *testing.T) {
	r := budget.Rule{Size: 5 * budget.Token, Credit: budget.Credit}
	var d budget.Debt
	fail := func(route uint32) {
		for retries := range uint8(3) {
			d.Fail(r, budget.Failure{Route: route, Retries: retries}, true, budget.RetryCost)
		}
	}
	spend := func(route uint32) (why budget.Refusal) {
		d.Missing, d.Row = 0, 0
		_, why = d.Pay(r, budget.Failure{Route: route})
		return why
	}
	for range 5 {
		for route := range uint32(budget.Routes - 1) {
			fail(1000 + route)
		}
	}
	assert.Equal(t, budget.RouteFailing, spend(1000))
	assert.Zero(t, spend(7), "no other route pays")
	for range 5 {
		fail(2000)
	}
	assert.Equal(t, budget.RouteFailing, spend(7), "all rows are taken")
	d.Succeed(r, 0, false, true, false, 2000)
	assert.Zero(t, spend(7))
	assert.Equal(t, budget.RouteFailing, spend(1001))
}
