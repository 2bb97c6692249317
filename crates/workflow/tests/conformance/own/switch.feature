Feature: Switch Task
  One of several ways

  Background:
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: switch, version: '1.0.0' }
    do:
      - sort:
          switch:
            - isRed: { when: '.color == "red"', then: setRed }
            - isGreen: { when: '${ .color == "green" }', then: setGreen }
            - other: { then: setOther }
      - setRed: { set: { rgb: [255, 0, 0] }, then: end }
      - setGreen: { set: { rgb: [0, 255, 0] }, then: end }
      - setOther: { set: { rgb: null } }
    """

  Scenario: The case that fits is taken
    Given the workflow input is:
    """yaml
    color: green
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    rgb: [0, 255, 0]
    """
    And setRed should not have executed
    And setGreen should run last

  Scenario: The case without a condition is for all others
    Given the workflow input is:
    """yaml
    color: pink
    """
    When the workflow is executed
    Then the workflow should complete
    And setOther should run last
