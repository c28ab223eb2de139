module github.com/retrip/retrip/examples/sdks/heavy

go 1.26.0

replace github.com/retrip/retrip => ../../..
